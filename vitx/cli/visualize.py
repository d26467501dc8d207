"""Draws a figure of a trained model or of a config: `vitx visualize FIGURE --out DIR`.

    vitx visualize attention_past --workdir runs/text --out pictures
    vitx visualize patterns --config sparse_transformer_cifar10:strided --out pictures
    vitx visualize attention --workdir runs/a runs/b --out pictures
    vitx visualize attention --workdir runs/a --inputs one.png two.jpg --out pictures
    vitx visualize mistakes --workdir runs/a --split test --examples 8 --out pictures
    vitx visualize curves --workdir runs/a runs/b --out pictures
    vitx visualize curves --workdir runs/vanilla_w96_d8 --config simplified_cifar10 --out pictures
    vitx visualize gallery --patterns window,axial_rows --grid 12,12 --out pictures
    vitx visualize memory --results results/vix.csv --config vix_cifar10 --out pictures

Files are named after the figure and the row, or after the workdir. A model of a config has its
initial weights; `vitx convert` makes a workdir of foreign weights. The workdir of a sweep means all
its runs. Curves also show the published ones, of the rows of `--config` that have the names of the
workdirs. Figures:
"""

import argparse
from collections.abc import Sequence
from typing import Any

from vitx.analysis.figures import ALL_FIGURES
from vitx.cli.flags import CHECKPOINT, RUN, add_trust, integers, names


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  lines = (f"    {name:<16}{what}" for name, what in ALL_FIGURES.items())
  parser.description = "\n".join([parser.description or "", *lines])
  add = parser.add_argument
  add("figure", metavar="FIGURE", help="a name of the list above")
  add("--workdir", nargs="+", help=f"{RUN}; some figures take several, curves sweeps")
  add(
    "--config",
    help="FILE:ROW,field=value or a config.json, with starting weights; of curves, whose source's",
  )
  add("--results", metavar="CSV", help="of vitx reproduce or sweep over the rows of --config")
  add("--checkpoint", default="best", help=f"of the workdir: {CHECKPOINT}")
  add("--split", help="of confusion, mistakes and reliability; else validation")
  add("--out", required=True, metavar="DIR", help="where the files are written")
  add("--local", type=int, help="the last so many tokens count as near; else a row")
  add("--examples", type=int, default=4, help="that are looked at, the first of validation")
  add(
    "--inputs",
    nargs="+",
    default=(),
    metavar="FILE",
    help="that are looked at instead, such as images of your own, or folders of them",
  )
  add(
    "--queries",
    type=integers,
    default=(),
    help="positions that are drawn, separated by commas; else a few, spread evenly",
  )
  add(
    "--patterns",
    type=names,
    default=(),
    metavar="NAMES",
    help="that gallery draws, separated by commas; else eight of them",
  )
  add(
    "--grid",
    type=integers,
    default=(),
    metavar="ROWS,COLUMNS",
    help="that the gallery's patterns are laid over, as 12,12",
  )
  add_trust(add, "let the config name Python of its own")


def run(figure: str, out: str, inputs: Sequence[str], **given: Any) -> None:
  """Draws the figure and prints the names of its files, and its table if there is one."""
  from vitx.inference.visualize import Options, visualize

  own = {name: given.pop(name) for name in ("local", "examples", "queries")}
  for path in visualize(figure, out, options=Options(**own, inputs=tuple(inputs)), **given):
    print(path)
    if path.suffix == ".csv":
      print(path.read_text(encoding="utf-8"), end="")
