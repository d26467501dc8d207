"""Evaluates a trained model from its workdir: `vitx evaluate --workdir DIR`."""

import argparse

from vitx.cli.tables import OutFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("--workdir", required=True, help="of a training run")
  add("--checkpoint", default="best", help="best, latest or a step")
  add("--weights", help="ema or raw; without it those that chose the best")
  add(
    "--split",
    help="train, validation or test, as in training, or all of the source;"
    " without it test of the run's source, all of another",
  )
  add("--source", help="another source with the same classes, e.g. folder:PATH")
  add("--data_dir", help="where TFDS sets lie, if not where the run found them")
  add("--batch_size", type=int, help="over all devices; else the run's")
  add("--limit", type=int, help="a quick look at so many examples, spread over the split")
  add("--task", default="", metavar="FIELD=VALUE,...", help="other fields of the task")
  add("--predictions", action=OutFile, metavar="FILE", help="write a CSV row per example")
  add("--json", action=OutFile, metavar="FILE", help="write the figures as JSON")
  add("--trust_code", action="store_true", help="let the run's config name Python of its own")
