"""Predicts with a trained model: `vitx predict --workdir runs/digits scan.png photographs ...`.

A line for each input says its name, the most probable class and its probability; of a model that
tells no classes, the task's own columns. A folder stands for all images beneath it, sorted; files
of other suffixes are skipped, and stderr says how many.
"""

import argparse

from vitx.cli.tables import OutFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("files", metavar="FILE", nargs="+", help="an image, what else the task reads, or a folder")
  add("--workdir", required=True, help="of a training run")
  add("--checkpoint", default="best", help="best, latest or a step")
  add("--top_k", type=int, default=1, help="tell so many classes of each, the best first")
  add("--features", action="store_true", help="also write what the network's head reads, as JSON")
  add(
    "--skip_unreadable",
    action="store_true",
    help="leave inputs out that cannot be read, and name them on stderr",
  )
  add("--json", action=OutFile, metavar="FILE", help="write all that the model tells as JSON")
  add(
    "--csv", action=OutFile, metavar="FILE", help="write the printed columns, a row for each input"
  )
  add("--trust_code", action="store_true", help="let the run's config name Python of its own")
