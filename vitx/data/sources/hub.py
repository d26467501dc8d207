"""The source `hf:NAME`: labeled images read by Hugging Face's library `datasets`."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from vitx.config.errors import ConfigError, importing, listing
from vitx.config.fields import DataSettings
from vitx.data import class_names
from vitx.data.dataset import Dataset, DatasetInfo, Example, Examples, Subset
from vitx.data.fingerprint import digest, read_sample
from vitx.data.images.decode import Encoded, decode_example
from vitx.data.images.settings import check_file_settings, image_spec
from vitx.data.sources.files import find_path
from vitx.data.sources.folder import make_dataset
from vitx.files import reading

SAVED = ("dataset_dict.json", "state.json")  # the files that `save_to_disk` writes
VALUE = "Value"  # the kind of a column of texts or numbers


@dataclasses.dataclass(frozen=True)
class HubImages:
  """The images of one split, with their classes.

  Attributes:
    table: The split, a `datasets.Dataset` whose images are encoded.
    image: The name of the column of images.
    labels: The classes, int32 (n,), -1 for a missing label; None for images without labels.
  """

  table: Any
  split: str
  image: str
  labels: np.ndarray | None
  settings: DataSettings

  def __len__(self) -> int:
    return len(self.table)

  def __getitem__(self, i: int) -> Example:
    """Returns `image`, uint8 (height, width, C), in its native size, and its `label` if known."""
    return decode_example(self.encoded(i))

  def encoded(self, i: int) -> dict[str, Any]:
    """Returns an example whose image is not decoded yet, but still an `Encoded`."""
    channels, values = self.settings.channels, self.settings.value_range
    image = Encoded(self.read(i), channels, self.name(i), upright=True, value_range=values)
    return {"image": image} | ({} if self.labels is None else {"label": self.labels[i]})

  def read(self, i: int) -> bytes:
    """Returns the bytes of an image file, which the table contains or names by a path."""
    with reading(f"{self.name(i)} cannot be read"):
      stored = self.table[int(i)][self.image] or {}
      if not any(stored.values()):
        raise ValueError("the image is missing")
      return stored["bytes"] or Path(stored["path"]).read_bytes()

  def name(self, i: int) -> str:
    return f"{self.split}[{i}]"


def open_hub(data: DataSettings) -> Dataset:
  """Opens `hf:NAME`, or `hf:NAME:CONFIG` for a set with several configs.

  NAME is a set of the Hugging Face Hub, a directory that `datasets.load_dataset` reads, or a
  directory that `save_to_disk` wrote. The set must have one column of images. `data.label_columns`
  names the column of the classes: a `ClassLabel`, or a column whose different texts or numbers are
  the classes. If it is None, the only `ClassLabel` is taken. Without such a column the images have
  no labels. Examples whose label is null or -1 are left out with a warning. The library `datasets`
  downloads a set of the Hub to its own cache and runs no code of the set.

  Args:
    data: The config's `data`, of which these fields are read: source, channels, value_range,
      label_columns; groups.
  """
  check_file_settings(data)
  name = data.source
  tables = _load(name)
  first = next(iter(tables.values()))
  kinds = {column: type(feature).__name__ for column, feature in first.features.items()}
  image = _choose_image(name, kinds)
  label = class_names.choose_label(data.label_columns, kinds, VALUE)
  coded = names = getattr(first.features.get(label), "names", None)
  for split, table in tables.items():
    others = getattr(table.features.get(label), "names", names)  # a number has no names
    if not {image, label or image} <= table.features.keys() or others != names:
      raise ConfigError(
        f"data.source={name!r}: the split {split!r} does not have the columns"
        f" {image}{label and f' and {label}'} with the classes {listing(names or ()) or 'none'}, as"
        f" {next(iter(tables))!r} has."
      )
  labels, names = _read_labels(tables, label, names) if label else ({}, None)
  feature = dataclasses.replace(first.features[image], decode=False)
  opened = {
    split: HubImages(table.cast_column(image, feature), split, image, labels.get(split), data)
    for split, table in tables.items()
  }
  parts: list[str | bytes] = [*(names or ())]
  for split in sorted(opened):
    parts += [split, str(len(opened[split])), digest(_content(opened[split]))]
  groups: dict[str, str] = {}
  if data.groups in first.features:
    groups = {f"{s}[{i}]": str(x) for s in opened for i, x in enumerate(tables[s][data.groups])}
    parts += groups.values()
  hint = "" if label else class_names.hint_label(kinds, f"{class_names.CLASS} or {VALUE}")
  if hint and data.label_columns is None:
    logging.warning("%s is read without labels.%s", name, hint)
  spec = image_spec(data.channels, labeled=bool(label))
  numbered = coded is not None or class_names.are_numbered(names or ())
  info = DatasetInfo(name, spec, names, fingerprint=digest(parts), numbered=numbered, hint=hint)
  skipped: list[str] = []
  readable = {split: _drop_unreadable(images, skipped) for split, images in opened.items()}
  splits = {split: images for split, images in readable.items() if len(images)}
  unlabeled = tuple(split for split in opened if split not in splits)
  unread = {"examples whose label is missing": skipped}
  find_group = groups.__getitem__ if groups else None
  return make_dataset(info, splits, unlabeled=unlabeled, unread=unread, groups=find_group)


def _load(name: str) -> Mapping[str, Any]:
  """Returns the tables of a set by split."""
  with importing(f"data.source={name!r}", "datasets"):
    import datasets
  path, _, config = name.removeprefix("hf:").partition(":")
  folder = find_path(f"hf:{path}")
  is_saved = any((folder / file).exists() for file in SAVED)
  if is_saved and config:
    raise ConfigError(f"data.source={name!r}: a set saved by save_to_disk has no configs.")
  datasets.disable_progress_bars()
  with reading(f"data.source={name!r} cannot be loaded by the library datasets"):
    if is_saved:
      tables = datasets.load_from_disk(str(folder))
    else:
      tables = datasets.load_dataset(str(folder) if folder.exists() else path, config or None)
  return tables if isinstance(tables, dict) else {"train": tables}


def _choose_image(name: str, kinds: Mapping[str, str]) -> str:
  """Returns the only column of the kind Image."""
  columns = [column for column in kinds if kinds[column] == "Image"]
  if len(columns) != 1:
    raise ConfigError(
      f"data.source={name!r} must have one column of kind Image, but has"
      f" {listing(columns) or 'none'} among {listing(kinds)}; choose or cast columns, and"
      " save the set by save_to_disk."
    )
  return columns[0]


def _read_labels(
  tables: Mapping[str, Any], label: str, names: Sequence[str] | None
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
  """Returns the classes of each split, int32 (n,), -1 for none, and the names of the classes."""
  columns = {split: list(table[label]) for split, table in tables.items()}
  if names is None:
    columns = {k: [None if x in (None, -1) else str(x) for x in xs] for k, xs in columns.items()}
    names = class_names.sort_names([*set().union(*columns.values()) - {None}])
  index = {name: i for i, name in enumerate(names)} | {None: -1}
  labels = {k: np.array([index.get(x, x) for x in xs], np.int32) for k, xs in columns.items()}
  return labels, tuple(names)


def _drop_unreadable(images: HubImages, skipped: list[str]) -> Examples:
  """Leaves out the examples whose label is missing, and adds their names to `skipped`."""
  labels = images.labels
  if labels is None or (labels >= 0).all():
    return images
  if (labels >= 0).any():
    skipped += [images.name(i) for i in np.flatnonzero(labels < 0).tolist()]
  return Subset(images, lambda: np.flatnonzero(labels >= 0))


def _content(examples: HubImages) -> Iterator[str | bytes]:
  """Yields the labels of a split and then the bytes of its images, or of a sample of them."""
  yield b"" if examples.labels is None else examples.labels.tobytes()
  yield from read_sample(examples.read, len(examples), examples.table.data.nbytes)
