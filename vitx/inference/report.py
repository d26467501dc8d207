"""A report about an evaluated classifier: numbers, confusions, calibration, pictures of mistakes.

Names of classes, files and sources may come from anyone. So the report shows names as plain text
and only the last part of an absolute path, loads nothing from a network, and has no script.
"""

import base64
import html
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

import vitx
from vitx.analysis import markdown
from vitx.analysis.figures import style
from vitx.analysis.figures.confusion import plot_confusion
from vitx.analysis.figures.mistakes import SHOWN, TITLES, Picture, choose_pictures
from vitx.analysis.figures.reliability import plot_reliability
from vitx.checkpoints.workdir import ENVIRONMENT, read_json
from vitx.config.errors import escape
from vitx.inference.subject import Evaluation, show_predictions
from vitx.tasks.figures import describe_fit, describe_sets, list_confusions, select, table_rows

PAGE, TEXT = "index.html", "report.md"
PICTURES = 12  # The largest number of pictures of mistakes, and of uncertain examples.
CONFUSIONS = 10
_STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def write_report(evaluated: Evaluation, out: str | Path) -> None:
  """Writes a classifier's report as HTML with pictures inside, and as Markdown with them beside it.

  The pages are `index.html` and `report.md` in the folder `out`.
  """
  subject = show_predictions(evaluated)
  pictures = choose_pictures(subject, PICTURES)
  folder = Path(out)
  folder.mkdir(parents=True, exist_ok=True)
  result, content = evaluated.result, _Content(evaluated, f"{subject.note}.")
  canvases = {
    "confusion": plot_confusion(np.array(result["confusion"]), subject.class_names),
    "reliability": plot_reliability(result["reliability"]),
  }
  plots = {name: style.save(canvas, folder, name) for name, canvas in canvases.items()}
  (folder / PAGE).write_text(_write_page(content, plots, pictures), encoding="utf-8")
  (folder / TEXT).write_text(_write_text(content, plots, pictures, folder), encoding="utf-8")


class _Content:
  """The texts and tables of a report, from which both pages are made."""

  def __init__(self, evaluated: Evaluation, note: str):
    self.result, self.loaded, self.note = evaluated.result, evaluated.loaded, note
    self.names = evaluated.loaded.class_names
    workdir = Path(self.result["workdir"]).resolve().name
    self.title = f"{workdir}: evaluation on {self.result['split']}"

  def figures(self) -> list[list[str]]:
    """Returns the table of the accuracy and similar numbers, each with its interval."""
    shown = table_rows(self.loaded.task.figures, self.result)
    return [["figure", "value", "95 % interval"], *map(list, shown)]

  def intervals(self) -> str:
    """Returns a sentence about the intervals."""
    return (
      f"{self.result['examples']:,} examples. Intervals are percentiles of"
      f" {self.result['resamples']:,} bootstrap resamples of the examples; they do not contain the"
      " variation between trainings. A figure that no resample changes has none."
    )

  def calibration(self) -> list[list[str]]:
    """Returns the table of NLL and calibration error with and without a temperature, if any."""
    fitted = self.result.get("calibration")
    if fitted is None:
      return []
    parts = {"validation": fitted["validation"]}
    parts = {self.result["split"]: fitted} | (parts if self.result["split"] not in parts else {})
    times = {"before": "as trained", "after": "with the temperature"}
    times = {time: head for time, head in times.items() if time in fitted}
    rows = [["", *times.values()]]
    for split, figures in parts.items():
      for key, figure in (("nll", "NLL (nats)"), ("ece", "calibration error")):
        rows.append([f"{figure}, {split}", *(f"{figures[time][key]:.4f}" for time in times)])
    return rows

  def notes(self) -> str:
    """Returns a sentence about the temperature and one about the sets, where there are such."""
    fitted, sentences = self.result.get("calibration"), []
    if fitted and fitted["temperature"] is None:
      sentences.append(f"The temperature is {describe_fit(fitted)}.")
    elif fitted:
      warm = "over" if fitted["temperature"] > 1 else "under"
      sentences.append(
        f"The temperature {fitted['temperature']:.4f} divides the logits for the least NLL on "
        f"{fitted['fitted_examples']:,} examples of validation: there the model is {warm}confident."
      )
    if "sets" in self.result:
      sentences.append(f"{describe_sets(self.result['sets'])}.".capitalize())
    return " ".join(sentences)

  def classes(self) -> list[list[str]]:
    """Returns the table of the recall, precision and F1 of each class, with their intervals."""
    figures = select(self.loaded.task.figures, self.result, "class")
    titles = [x.label if x.name != "class_top1" else "recall" for x in figures]
    heads = [part for title in titles for part in (title, "95 % interval")]
    rows = [["class", "examples", *heads]]
    for number, name in enumerate(self.names):
      cells = [f"{self.result['class_examples'][number]:,}"]
      for figure in figures:
        value = self.result[figure.name][number]
        interval = "class_recall" if figure.name == "class_top1" else figure.name
        ends = self.result["intervals"][interval][number]
        shown = value is not None and ends is not None
        cells += [figure.show(value) if value is not None else "none"]
        cells += [" to ".join(map(figure.show, ends)) if shown else ""]
      rows.append([name, *cells])
    return rows

  def confusions(self) -> list[list[str]]:
    """Returns the table of the most frequent confusions."""
    confused = list_confusions(self.result["confusion"])[:CONFUSIONS]
    body = [[self.names[true], self.names[guess], f"{n:,}"] for n, true, guess in confused]
    return [["true class", "predicted class", "examples"], *body]

  def provenance(self) -> list[tuple[str, str]]:
    """Returns pairs (name, value) that say where the results come from, such as the workdir."""
    environment = read_json(self.loaded.workdir, ENVIRONMENT)
    trained = environment.get("versions") or {}
    now = {"vitx": vitx.__version__, "jax": jax.__version__, "python": sys.version.split()[0]}
    facts = {
      "workdir": _join([self.result["workdir"]]),
      "checkpoint": f"step {self.result['step']}",
      "source": _join([self.result["source"]]),
      "split": f"{self.result['split']} ({self.result['examples']:,} examples)",
      "data fingerprint": self.loaded.fingerprint or "none",
      "trained by": _join(environment.get("command") or ["unknown"]),
      "trained with": ", ".join(f"{k} {v}" for k, v in trained.items() if v) or "unknown",
      "commit of vitx": str(environment.get("commit") or "unknown"),
      "evaluated by": _join(sys.argv),
      "evaluated with": ", ".join(f"{k} {v}" for k, v in now.items()),
      "devices": ", ".join(dict.fromkeys(device.device_kind for device in jax.devices())),
    }
    return list(facts.items())


def _join(command: Sequence[Any]) -> str:
  """Returns a command as a line, with absolute paths cut to their last part."""
  program, *words = (str(markdown.shorten_paths(str(word))) for word in command)
  return " ".join(["vitx" if program == "__main__.py" else program, *words])


def _write_page(
  content: _Content, plots: Mapping[str, Path], pictures: Mapping[str, Sequence[Picture]]
) -> str:
  """Returns the page in HTML."""
  inside = {name: _embed(path.read_bytes(), "png") for name, path in plots.items()}
  calibration = content.calibration()
  parts = [
    f"<h1>{to_html(content.title)}</h1>\n<p class='note'>{to_html(content.note)}</p>",
    f"<h2>Figures</h2>\n{make_table(content.figures())}",
    f"<p class='note'>{to_html(content.intervals())}</p>",
    "<h2>Confusion and calibration</h2>\n<div class='plots'>"
    f"<img src='{inside['confusion']}' alt='confusion matrix'>"
    f"<img class='narrow' src='{inside['reliability']}' alt='reliability diagram'></div>",
    f"<p>{to_html(content.notes())}</p>\n{make_table(calibration) if calibration else ''}",
    f"<h2>Most frequent confusions</h2>\n{make_table(content.confusions(), texts=2)}",
    f"<h2>Classes</h2>\n<div class='scroll'>{make_table(content.classes())}</div>",
  ]
  for kind, shown in pictures.items():
    attended = any(picture.attention is not None for picture in shown)
    parts.append(f"<h2>{TITLES[kind]}</h2>\n" + f"<p class='note'>{SHOWN}.</p>" * attended)
    figures = "\n".join(map(_figure, shown))
    parts.append(f"<div class='pictures'>\n{figures}\n</div>" if shown else "<p>None.</p>")
  facts = "\n".join(
    f"<tr><td>{to_html(name)}</td><td>{to_html(value)}</td></tr>"
    for name, value in content.provenance()
  )
  parts.append(f"<h2>Provenance</h2>\n<table class='facts'>\n{facts}\n</table>")
  return make_page(content.title, parts)


def make_page(title: str, parts: Sequence[str]) -> str:
  """Returns a page in HTML with a title, from the HTML of its parts."""
  body = "\n".join(parts)
  return (
    "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
    "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
    "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src data:;"
    " style-src 'unsafe-inline'\">\n"
    f"<title>{to_html(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
    f"<body>\n{body}\n</body>\n</html>\n"
  )


def to_html(value: Any) -> str:
  """Returns a text escaped for HTML, on one line."""
  return html.escape(escape(str(value), line=True), quote=True)


def make_table(rows: Sequence[Sequence[str]], texts: int = 1) -> str:
  """Returns rows, of which the first is the head, as HTML; the first `texts` columns hold text."""
  left = " style='text-align:left'"

  def line(row: Sequence[str], tag: str) -> str:
    cells = (
      f"<{tag}{left if 0 < place < texts else ''}>{to_html(cell)}</{tag}>"
      for place, cell in enumerate(row)
    )
    return f"<tr>{''.join(cells)}</tr>"

  head, *body = rows
  return "\n".join(["<table>", line(head, "th"), *(line(row, "td") for row in body), "</table>"])


def _figure(picture: Picture) -> str:
  right = picture.label == picture.prediction
  span = f"<span class='{'right' if right else 'wrong'}'>{to_html(picture.prediction)}</span>"
  caption = f"true: {to_html(picture.label)}<br>predicted: {span}, {picture.confidence:.1%}"
  return make_figure(picture.name, picture.render(), caption)


def make_figure(name: str, picture: Image.Image, caption: str) -> str:
  """Returns a picture of an example with a caption in HTML, below which its name is added."""
  return (
    f"<figure><img src='{_embed(_encode(picture), 'jpeg')}' alt='{to_html(name)}'>"
    f"<figcaption>{caption}<br><span class='file'>{to_html(markdown.shorten_paths(name))}</span>"
    "</figcaption></figure>"
  )


def _encode(picture: Image.Image) -> bytes:
  content = io.BytesIO()
  picture.save(content, "JPEG", quality=88)
  return content.getvalue()


def _embed(content: bytes, kind: str) -> str:
  return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _write_text(
  content: _Content,
  plots: Mapping[str, Path],
  pictures: Mapping[str, Sequence[Picture]],
  folder: Path,
) -> str:
  """Returns the page in Markdown, and writes the page's photos beside it."""
  calibration = content.calibration()
  parts = [
    f"# {markdown.text(content.title)}",
    markdown.text(content.note),
    f"## Figures\n\n{markdown.table(content.figures())}",
    content.intervals(),
    f"## Confusion and calibration\n\n![confusion matrix]({plots['confusion'].name})"
    f"\n\n![reliability diagram]({plots['reliability'].name})",
    f"{content.notes()}\n\n{markdown.table(calibration) if calibration else ''}",
    f"## Most frequent confusions\n\n{markdown.table(content.confusions())}",
    f"## Classes\n\n{markdown.table(content.classes())}",
  ]
  for kind, shown in pictures.items():
    rows = [["picture", "true class", "predicted class", "confidence"]]
    lines = [markdown.table(rows)]
    for number, picture in enumerate(shown):
      file = f"{kind}_{number}.jpg"
      (folder / file).write_bytes(_encode(picture.render()))
      texts = markdown.shorten_paths(picture.name), picture.label, picture.prediction
      name, *classes = map(markdown.text, texts)
      cells = [f"![]({file})<br>{name}", *classes, f"{picture.confidence:.1%}"]
      lines.append(f"| {' | '.join(cells)} |")
    parts.append(f"## {TITLES[kind]}\n\n" + ("\n".join(lines) if shown else "None."))
  facts = [f"- {name}: {markdown.code(value)}" for name, value in content.provenance()]
  parts.append("## Provenance\n\n" + "\n".join(facts))
  return "\n\n".join(parts) + "\n"
