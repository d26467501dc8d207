"""Predicts with a trained model: `vitx predict --workdir runs/digits scan.png photographs ...`.

Each printed line has the name of an input, its most probable class and the probability. For a model
without classes, the task of the model defines the columns. A folder means all images in it at any
depth, sorted. Files with other suffixes are skipped, and their number is printed to stderr. If
inputs cannot be read, the others are predicted and written, and the exit status is 1.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from vitx.analysis import csv_files
from vitx.analysis.tables import format_figure, lay_out
from vitx.checkpoints.outputs import write_json
from vitx.cli.console import say
from vitx.cli.flags import CHECKPOINT, MODEL, OutFile, add_trust, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  words = "An image file, a folder of images, or an .npz file of arrays."
  add("files", metavar="FILE", nargs="+", help=words)
  add("--workdir", required=True, help=MODEL)
  add("--checkpoint", default="best", help=CHECKPOINT)
  add("--top_k", type=positive, default=1, help="The number of classes to show per input.")
  words = "Adds the head's input to the JSON file, or with `patches` the token of each patch."
  add("--features", nargs="?", const=True, default=False, choices=("patches",), help=words)
  words = "Adds sets of classes that contain the true class with this probability, such as 0.9."
  add("--coverage", type=float, metavar="SHARE", help=words)
  words = "Ends with status 0 if inputs are unreadable, as for a run with data.on_unreadable=skip."
  add("--skip_unreadable", action="store_true", help=words)
  add("--json", action=OutFile, metavar="FILE", help="Writes all outputs as JSON.")
  add("--csv", action=OutFile, metavar="FILE", help="Writes the printed columns as CSV.")
  add_trust(add)


def run(
  files: Sequence[str],
  workdir: str,
  checkpoint: str,
  top_k: int,
  json: str | None,
  csv: str | None,
  skip_unreadable: bool,
  **options: Any,
) -> int:
  """Prints a prediction for each file, writes JSON and CSV, and returns the exit status."""
  from vitx.inference.ensemble import load_model
  from vitx.inference.predict import WRITTEN, predict, skips_unreadable
  from vitx.tasks.multilabel import MultiLabel

  loaded = load_model(workdir, checkpoint)
  prediction = predict(loaded, files, skip_unreadable=True, **options)
  accepts = skip_unreadable or not prediction.skipped or skips_unreadable(loaded)
  columns = {"name": list(prediction.names), **prediction.columns}
  shown = columns
  if isinstance(loaded.task, MultiLabel) and top_k == 1:
    shown = {name: columns[name] for name in ("name", "prediction")}
  elif "probabilities" in prediction.rows:
    shown = {"name": list(prediction.names), **_best_columns(prediction, top_k)}
  if prediction.sets is not None:
    columns["set"] = prediction.sets
    shown = {**shown, "set": [", ".join(classes) or "empty" for classes in prediction.sets]}
  rows = list(zip(*shown.values(), strict=True))
  # The files come first, since a console may end or lack a character.
  if json:
    arrays = {name: prediction.rows[name].tolist() for name in WRITTEN if name in prediction.rows}
    entries = zip(*columns.values(), *arrays.values(), strict=True)
    write_json(json, [dict(zip((*columns, *arrays), entry, strict=True)) for entry in entries])
  if csv:
    csv_files.write(csv, [list(shown), *rows])
  print(lay_out([list(shown), *([_cell(value) for value in row] for row in rows)]))
  if prediction.skipped:
    lines = "".join(f"\n  {line}" for line in prediction.skipped)
    lines += "" if accepts else "\nThe exit status is 1; --skip_unreadable accepts such inputs."
    say(f"skipped {len(prediction.skipped)} inputs that cannot be read:{lines}")
  return 0 if accepts else 1


def _best_columns(prediction: Any, k: int) -> dict[str, list[Any]]:
  """Returns the k most probable classes of each example and their probabilities, as columns."""
  columns: dict[str, list[Any]] = {}
  k = min(k, len(prediction.class_names))
  for place, best in enumerate(zip(*prediction.top_k(k), strict=True), 1):
    mark = "" if k == 1 else f" {place}"
    columns[f"class{mark}"] = [name for name, _ in best]
    columns[f"probability{mark}"] = [p for _, p in best]
  return columns


def _cell(value: Any) -> str:
  return format_figure(value) if isinstance(value, float) else str(value)
