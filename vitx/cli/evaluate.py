"""Evaluates a trained model from its workdir: `vitx evaluate --workdir DIR`."""

import argparse
from typing import Any

from vitx.checkpoints.outputs import write_json
from vitx.cli.flags import CHECKPOINT, DATA_DIR, RUN, TRUST_RUN, OutFile, add_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("--workdir", required=True, help=RUN)
  add("--checkpoint", default="best", help=CHECKPOINT)
  add("--weights", help="ema or raw; without it those that chose the best")
  add(
    "--split",
    help="train, validation or test, as in training, or all of the source;"
    " without it test of the run's source, all of another",
  )
  add("--source", help="another source with the same classes, e.g. folder:PATH")
  add("--data_dir", help=DATA_DIR)
  add("--batch_size", type=int, help="over all devices; else the run's")
  add("--limit", type=int, help="a quick look at so many examples, spread over the split")
  add("--task", default="", metavar="FIELD=VALUE,...", help="other fields of the task")
  add("--predictions", action=OutFile, metavar="FILE", help="write a CSV row per example")
  add(
    "--calibrate",
    action="store_true",
    help="fit a temperature on validation, and show NLL and calibration error with it",
  )
  add("--report", metavar="DIR", help="write a page of figures, confusions and mistakes there")
  add("--json", action=OutFile, metavar="FILE", help="write the figures as JSON")
  add_trust(add, TRUST_RUN)


def run(
  workdir: str, checkpoint: str, weights: str | None, json: str | None, **options: Any
) -> None:
  """Evaluates a run, prints the task's table and writes the requested files."""
  from vitx.checkpoints.load import load
  from vitx.inference.evaluate import evaluate

  loaded = load(workdir, checkpoint, weights=weights)
  result = evaluate(loaded, **options)
  print(
    f"{workdir}, checkpoint {result['step']}, on {result['source']} ({result['split']})\n"
    f"  examples            {result['examples']:>9,}\n"
    f"{loaded.task.table(result, loaded.data)}"
  )
  if json:
    write_json(json, result)
  if options["report"]:
    print(f"the report is {options['report']}/index.html")
