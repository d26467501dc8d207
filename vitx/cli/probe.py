"""Classifies frozen features, in seconds and without training: `vitx probe --workdir DIR`.

    vitx probe --workdir runs/digits
    vitx probe --workdir runs/digits --source folder:photos --out pictures
    vitx probe --config configs/finetune.py:deit_s,dataset=folder:photos --csv probe.csv

A feature is the input of the network's head. The features of train, validation and test are
computed once, and kept in a file of the cache directory. Nearest neighbors, ridge regression and
logistic regression learn from train, their setting is chosen on validation, and the result is the
accuracy on test. The few-shot curves show the accuracy with few training examples of each class.
"""

import argparse
import os
from collections.abc import Mapping
from typing import Any

from vitx.analysis import csv_files
from vitx.analysis.tables import lay_out
from vitx.checkpoints.outputs import write_json
from vitx.cli.flags import CHECKPOINT, DATA_DIR, RUN, OutFile, add_trust, names, positives


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("--workdir", help=RUN)
  add("--config", help="A config whose init_from names weights, instead of a workdir.")
  add("--checkpoint", default="best", help=CHECKPOINT)
  words = "The weights, ema or raw; the default is the kind that chose the best checkpoint."
  add("--weights", help=words)
  add("--source", help="Another source than the run's, of any classes, such as folder:PATH.")
  add("--data_dir", help=DATA_DIR)
  add("--batch_size", type=int, help="The batch size over all devices; the default is the run's.")
  words = "The methods: knn, ridge or logistic, separated by commas."
  add("--methods", type=names, default=["knn", "ridge", "logistic"], metavar="NAMES", help=words)
  words = "The numbers of examples per class in the few-shot curves, separated by commas."
  add("--shots", type=positives, default=[1, 2, 5, 10], metavar="COUNTS", help=words)
  words = "The number of random draws for each point of the curves; 0 makes no curves."
  add("--draws", type=int, default=5, help=words)
  add("--seed", type=int, default=0, help="The seed of the random draws.")
  add("--out", metavar="DIR", help="The folder for a picture of the curves, few_shot.png.")
  words = "The folder that keeps the features; the default is ~/.cache/vitx/features."
  add("--cache", metavar="DIR", help=words)
  add("--json", action=OutFile, metavar="FILE", help="Writes the results to this JSON file.")
  words = "Writes a row for each method and each number of examples to this CSV file."
  add("--csv", action=OutFile, metavar="FILE", help=words)
  add_trust(add)


def run(json: str | None, csv: str | None, **options: Any) -> None:
  """Prints the accuracies, and writes the requested files."""
  from vitx.inference.probe import probe

  result = probe(**options)
  if json:
    write_json(json, result)
  if csv:
    csv_files.write_records(csv, _records(result))
  counts = ", ".join(f"{count:,} {role}" for role, count in result["examples"].items())
  step = f", checkpoint {result['step']}" if options["workdir"] else ""
  print(
    f"{result['model']}{step}, on {result['source']}: {result['features']} features"
    f" ({'read from the cache' if result['cached'] else 'computed'}), examples: {counts}"
  )
  print(lay_out(_whole_rows(result), right=(2, 3)))
  if result["few_shot"]:
    print(f"\ntest, by the number of training examples of each class\n{_few_table(result)}")
  if options["out"] and result["few_shot"]:
    print(os.path.join(options["out"], "few_shot.png"))


def _whole_rows(result: Mapping[str, Any]) -> list[list[str]]:
  rows = [["method", "setting", "validation", "test"]]
  for method, scores in result["methods"].items():
    setting, value = next(iter(scores.items()))
    rates = [f"{scores[role]:.2%}" for role in ("validation", "test")]
    end = ", the end of the grid" * scores["at_end"]
    rows.append([method, f"{setting} = {value:g}{end}", *rates])
  return rows


def _few_table(result: Mapping[str, Any]) -> str:
  """Returns a table of test accuracies as text, by the examples per class and by the method."""
  methods = list(result["methods"])
  cells: dict[int, dict[str, str]] = {}
  for row in result["few_shot"]:
    text = f"{row['mean']:.2%}"
    if row["low"] is not None:
      text += f" [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
    cells.setdefault(row["shots"], {})[row["method"]] = text
  body = [[str(shots), *(texts[method] for method in methods)] for shots, texts in cells.items()]
  return lay_out([["examples", *methods], *body], right=(0,))


def _records(result: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Returns the rows of the CSV file; `shots` is "all" if a method learned from the whole split."""
  records: list[dict[str, Any]] = []
  for method, scores in result["methods"].items():
    setting, value = next(iter(scores.items()))
    fitted = {"setting": setting, "value": value, "validation": scores["validation"]}
    records.append({"method": method, "shots": "all", "test": scores["test"], **fitted})
  for row in result["few_shot"]:
    record = {"method": row["method"], "shots": row["shots"], "test": row["mean"]}
    ends = {end: "" if row[end] is None else row[end] for end in ("low", "high")}
    records.append({**record, "draws": len(row["values"]), **ends})
  return records
