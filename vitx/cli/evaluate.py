"""Evaluates a trained model from its workdir: `vitx evaluate --workdir DIR`."""

import argparse
from typing import Any

from vitx.checkpoints.outputs import write_json
from vitx.cli.flags import CHECKPOINT, DATA_DIR, MODEL, OutFile, add_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("--workdir", required=True, help=MODEL)
  add("--checkpoint", default="best", help=CHECKPOINT)
  words = "The weights, ema or raw; the default is the kind that chose the best checkpoint."
  add("--weights", help=words)
  words = "The split: train, validation, calibration, test or all; the default is test, or all of a"
  words += " --source."
  add("--split", help=words)
  add("--source", help="A source with the run's classes, such as folder:PATH.")
  add("--data_dir", help=DATA_DIR)
  add("--batch_size", type=int, help="The batch size over all devices; the default is the run's.")
  add("--limit", type=int, help="Evaluates only this many examples, evenly spaced over the split.")
  words = "Changes fields of the task, such as min_context=64."
  add("--task", default="", metavar="FIELD=VALUE,...", help=words)
  words = "Writes a row for each example to this CSV file."
  add("--predictions", metavar="FILE", help=words)
  words = "Fits a temperature on validation, and shows NLL and calibration error with it."
  add("--calibrate", action="store_true", help=words)
  words = "The share of prediction sets that are to have the true class, such as 0.9."
  add("--coverage", type=float, metavar="SHARE", help=words)
  words = "Writes a web page with all figures and with the mistakes into this folder."
  add("--report", metavar="DIR", help=words)
  words = "Writes the measured figures to this JSON file."
  add("--json", action=OutFile, metavar="FILE", help=words)
  add_trust(add)


def run(
  workdir: str, checkpoint: str, weights: str | None, json: str | None, **options: Any
) -> None:
  """Evaluates a run, prints a table of the task's metrics and writes the requested files."""
  from vitx.inference.ensemble import load_model
  from vitx.inference.evaluate import evaluate
  from vitx.tasks.figures import table

  loaded = load_model(workdir, checkpoint, weights=weights)
  result = evaluate(loaded, **options)
  if json:
    write_json(json, result)
  print(
    f"{workdir}, checkpoint {result['step']}, on {result['source']} ({result['split']})\n"
    f"  examples            {result['examples']:>9,}\n"
    f"{table(loaded.task.figures, result, loaded.class_names)}"
  )
  if options["report"]:
    print(f"the report is {options['report']}/index.html")
