"""Audits the images of a config before training: duplicates, suspect labels, unusual images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis import audit as checks
from vitx.analysis import csv_files, markdown
from vitx.analysis.audit import AuditedImage
from vitx.analysis.figures.mistakes import scale_side, to_color
from vitx.analysis.probes import LabeledFeatures, predict_out_of_fold
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config
from vitx.data.cache import cache_directory
from vitx.data.dataset import CALIBRATION, read_encoded
from vitx.data.images.decode import Encoded
from vitx.data.in_memory import SKIP, find_problems, raise_all
from vitx.data.sources import find_info
from vitx.data.strata import find_folds
from vitx.inference import report
from vitx.inference.features import read_features
from vitx.inference.folds import predict_folds
from vitx.inference.probe import open_config
from vitx.tasks import settle

FOLDS = 5  # of the probe
SHOWN, MEMBERS = 24, 4  # The most groups in a section of the page; the most pictures of a group.
ImageGroup = list[tuple[AuditedImage, str]]  # images, each with the finding about it


class Audit:
  """The images of a config, and what is noticed about them before a training.

  Attributes:
    images: The n images, in the order train, validation, test, calibration.
    findings: The groups of images of each kind: duplicates, suspects, unusual, bursts. In a group,
      an image of test precedes one of validation, this one of train, and this one of calibration.
    judge: A sentence about the predictions of the labels.
    groups: The expression for `data.groups` that keeps bursts together.
  """

  def __init__(
    self, config: str | Mapping[str, Any], predictions: str = "", suspects: int | None = None
  ):
    """Reads all images, and looks for errors.

    Args:
      config: A config, or its text `FILE:ROW,field=value`.
      predictions: The directory of a finished sweep over `data.fold`, whose runs predict the
        examples that they test. "" means a logistic regression out of fold: of the network's
        frozen features if `init_from` names weights, and otherwise of 8 x 8 pixels.
      suspects: The number of suspect labels to list; `None` means those of confident learning.

    Raises:
      ConfigError: The data have no images, or the predictions do not belong to them.
      MissingExtraError: The package imagehash is not installed.
    """
    self._config = load_config(config) if isinstance(config, str) else config
    settings = settle.read(self._config)
    info = find_info(settings.data)
    if "image" not in info.spec:
      raise ConfigError(f"data.source={info.name!r} has no images, which an audit looks at.")
    self._source = settle.open_data(settings)
    self._examples = self._source.all_roles()
    self._labels, self._names = self._examples.labels, np.array(info.class_names or ())
    roles = self._source.parts()
    self._roles = np.repeat([*roles], [*map(len, roles.values())]).tolist()
    images: dict[int, AuditedImage] = {}
    read = lambda i: images.update({i: self._read(i)})  # noqa: E731
    raise_all([*find_problems(read, len(self._roles), settings.data.threads).values()], SKIP)
    self.images = [images[i] for i in range(len(images))]
    self._numbers, kinds = checks.find_duplicates(self.images)
    moments = [image.moment or image.name for image in self.images]
    self.judge, suspect_labels = self._find_suspects(predictions, suspects)
    self.findings = {
      "duplicates": self._group(self._numbers, kinds),
      "suspects": suspect_labels,
      "unusual": [[(self.images[i], kind)] for i, kind in checks.find_unusual(self.images)],
      "bursts": self._group(moments, dict(enumerate(moments))),
    }
    names = [[image.name for image, _ in group] for group in self.findings["bursts"]]
    self.groups = checks.write_groups(names)

  def _read(self, i: int) -> AuditedImage:
    file, labels = read_encoded(self._examples, i)["image"], self._labels
    is_file = isinstance(file, Encoded)
    moment, pixels = (file.moment(), file.decode()) if is_file else ("", file)
    classes: Any = [] if labels is None else labels[i] > 0.5 if labels.ndim > 1 else [labels[i]]
    label = ", ".join(self._names[classes]) if self._names.size else ""
    facts = checks.measure_image(pixels)
    return AuditedImage(i, self._examples.name(i), self._roles[i], label, moment, *facts)

  def _find_suspects(self, sweep: str, most: int | None) -> tuple[str, list[ImageGroup]]:
    """Returns a sentence about predictions of the labels, and the images with suspect labels."""
    if self._labels is None or self._labels.ndim > 1 or not self._names.size:
      return "The images have no classes to predict.", []
    answers = predict_folds(sweep, self._names.tolist()) if sweep else self._probe(self._labels)
    images = [image for image in self.images if image.name in answers]
    if not images:
      raise ConfigError(f"predictions={sweep!r} is no sweep whose runs have tested these images.")
    labels = self._labels[[image.number for image in images]]
    probabilities = np.stack([answers[image.name] for image in images])
    order, guesses, count = checks.rank_suspects(probabilities, labels)
    groups: list[ImageGroup] = []
    for i in order[: most or count]:
      guess, label = probabilities[i, [guesses[i], labels[i]]]
      text = f"predicted: {self._names[guesses[i]]}, {guess:.1%}; as labeled: {label:.1%}"
      groups.append([(images[i], text)])
    share = (probabilities.argmax(axis=1) == labels).mean()
    return f"{share:.1%} of the labels of {len(labels):,} images are as predicted.", groups

  def _probe(self, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the probabilities of the classes by a logistic regression, by the image's name."""
    values = np.stack([image.thumbnail for image in self.images])
    if self._config["init_from"]:
      parts, _ = read_features(*open_config(self._config, None), cache_directory() / "features")
      values = np.concatenate([part.values for part in parts.values()])
    # Duplicates share a fold, or one would predict the wrong label of the other.
    folds = find_folds(labels, FOLDS, self._numbers)
    rows = predict_out_of_fold(LabeledFeatures(values, labels), folds, len(self._names))
    return {image.name: row for image, row in zip(self.images, rows, strict=True)}

  def _group(self, numbers: Any, texts: Mapping[int, str]) -> list[ImageGroup]:
    """Returns the groups of images of equal numbers, those of several classes or roles first."""
    order = lambda i: (self._roles[i] == CALIBRATION, -i)  # noqa: E731
    parts = [sorted(part.tolist(), key=order) for part in checks.list_groups(numbers)]
    groups = [[(self.images[i], texts[i]) for i in part] for part in parts]
    return sorted(groups, key=lambda group: [-_count(group, x) for x in ("class_name", "role")])

  def summarize(self) -> list[list[str]]:
    """Returns a table of the findings; its first row is the head."""
    rows = [["finding", "groups", "images", "groups across roles", "groups of several classes"]]
    for name, groups in self.findings.items():
      several = [sum(_count(group, x) > 1 for group in groups) for x in ("role", "class_name")]
      rows.append([name, *map(str, [len(groups), sum(map(len, groups)), *several])])
    return rows

  def write(self, out: str | Path) -> None:
    """Writes a page with pictures, `index.html`, and a CSV file for each kind of finding.

    `data.exclude` can name each file. Of duplicates that have one class, `duplicates.csv` lacks the
    first, which is to remain.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{markdown.shorten_paths(self._source.info.name)}: {len(self.images):,} images"
    parts = [f"<h1>{report.to_html(title)}</h1>", report.make_table(self.summarize())]
    parts.append(f"<p class='note'>{self.judge} Sections show at most {SHOWN} groups.</p>")
    for name, groups in self.findings.items():
      figures, rows = "", [["name", "role", "class", "finding", "group"]]
      for number, group in enumerate(groups, 1):
        shown = group[:MEMBERS] if number <= SHOWN else []
        figures += "".join(self._show(image, f"{number}: {text}") for image, text in shown)
        # One of several duplicates remains, unless it is unknown which class is right.
        keeps = name == "duplicates" and _count(group, "class_name") == 1
        rows += [[x.name, x.role, x.class_name, text, str(number)] for x, text in group[keeps:]]
      parts.append(f"<h2>{name.capitalize()}</h2>\n<div class='pictures'>{figures}</div>")
      csv_files.write(folder / f"{name}.csv", rows)
    if self.findings["bursts"]:
      parts.append(report.make_table([["data.groups"], [self.groups]]))
    (folder / report.PAGE).write_text(report.make_page(title, parts), encoding="utf-8")

  def _show(self, image: AuditedImage, finding: str) -> str:
    """Returns an image and the finding about it in HTML."""
    picture = scale_side(to_color(np.asarray(self._examples[image.number]["image"])))
    caption = "<br>".join(map(report.to_html, (f"{image.role}, {image.class_name}", finding)))
    return report.make_figure(image.name, picture, caption)


def _count(group: ImageGroup, field: str) -> int:
  """Returns the number of different values of a field."""
  return len({getattr(image, field) for image, _ in group})
