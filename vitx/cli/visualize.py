"""Draws a figure of a trained model or of a config: `vitx visualize FIGURE --out DIR`.

    vitx visualize attention_past --workdir runs/text --out pictures
    vitx visualize patterns --config sparse_transformer_cifar10:strided --out pictures
    vitx visualize attention --workdir runs/a runs/b --out pictures
    vitx visualize attention --workdir runs/a --inputs one.png two.jpg --out pictures
    vitx visualize mistakes --workdir runs/a --split test --examples 8 --out pictures
    vitx visualize curves --workdir runs/a runs/b --out pictures
    vitx visualize curves --workdir runs/vanilla_w96_d8 --config simplified_cifar10 --out pictures
    vitx visualize gallery --patterns window,axial_rows --grid 12,12 --out pictures
    vitx visualize memory --results results/vix/runs.csv --config vix_cifar10 --out pictures

Files are named after the figure and the row of the config, or after the workdir. With `--config`, a
model has its initial weights; for published weights, make a workdir with `vitx convert`. If
--workdir is the directory of a sweep, the figures of several runs draw all of them. For the figure
curves, `--config` is the config of a paper: beside the curve of each workdir, the published curve
of the row with the workdir's name is drawn. Figures:
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitx.analysis.figures import FIGURES
from vitx.cli.flags import CHECKPOINT, RUN, add_trust, integers, names

MOST, FIRST = 50, 10  # Of a table with more rows than MOST, FIRST are printed.


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  lines = (f"    {name:<16}{words}" for name, (_, words) in FIGURES.items())
  parser.description = "\n".join([parser.description or "", *lines])
  add = parser.add_argument
  words = "The name of the figure; vitx visualize --help lists them."
  add("figure", metavar="FIGURE", help=words)
  add("--workdir", nargs="+", help=f"{RUN} Some figures take several.")
  words = "The config of an untrained model, or of the paper whose published curves are shown."
  add("--config", help=words)
  add("--results", metavar="CSV", help="The results of vitx reproduce or sweep.")
  add("--checkpoint", default="best", help=CHECKPOINT)
  words = (
    "The split for the figures confusion, mistakes and reliability; the default is validation."
  )
  add("--split", help=words)
  add("--out", required=True, metavar="DIR", help="The folder of the files.")
  words = (
    "The distance in tokens up to which a key counts as near; the default is one row of the image."
  )
  add("--local", type=int, help=words)
  add("--examples", type=int, default=4, help="The number of examples.")
  words = "Files or folders to look at instead of validation examples."
  add("--inputs", nargs="+", default=(), metavar="FILE", help=words)
  words = "The numbers of the queries whose attention is drawn; the default is a few of them."
  add("--queries", type=integers, default=(), help=words)
  words = "The patterns for the figure gallery; the default is eight of them."
  add("--patterns", type=names, default=(), metavar="NAMES", help=words)
  words = "The grid of tokens for the figure gallery, such as 12,12."
  add("--grid", type=integers, default=(), metavar="ROWS,COLUMNS", help=words)
  add_trust(add)


def run(
  figure: str, out: str, inputs: Sequence[str], results: str | None, **arguments: Any
) -> None:
  """Draws the figure and prints the names of its files, and its table if there is one."""
  from vitx.inference.visualize import Options, visualize

  fields = {name: arguments.pop(name) for name in ("local", "examples", "queries")}
  arguments["options"] = Options(**fields, inputs=tuple(inputs))
  if results:
    from vitx.sweeps.results import measure_sweep  # The other figures need no training.

    arguments["results"] = partial(measure_sweep, results)
  for path in visualize(figure, out, **arguments):
    print(path)
    if path.suffix == ".csv":
      print_table(path)


def print_table(path: Path) -> None:
  """Prints a CSV file: of many rows the first, and nothing of a table with many columns."""
  head, *rows = path.read_text(encoding="utf-8").splitlines()
  few = rows if len(rows) <= MOST else rows[:FIRST]
  if head.count(",") <= MOST:
    print("\n".join([head, *few]))
    if len(few) < len(rows):
      print(f"... and {len(rows) - len(few):,} more rows in the file")
