"""Trains the rows of a config file and compares the results with the published figures.

    vitx reproduce --config vix_cifar10.py --rows vit,vip,vin --seeds 3 --duration "2 epochs"
    vitx reproduce --config vix_cifar10.py --budget 0.05PFLOP
    vitx reproduce --config digits.py:ema_decay=0 --rows softmax,fnet

A row is a named variant of a config file. `--budget` is the number of floating-point operations
that every row may spend on training, without evaluations, so cheap rows train for more steps. If a
row trains on another data set than in its paper, no published figure is shown for it. In all other
respects the command equals `vitx sweep` over rows.
"""

import argparse
from functools import partial
from typing import Any

from vitx.cli.flags import parse_amount, positive
from vitx.cli.sweep import add_output, run_points
from vitx.config.loader import find_rows, join_text, split_text

UNITS = {"FLOP": 1.0, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15, "EFLOP": 1e18}
PLURALS = {f"{unit}s": size for unit, size in UNITS.items()}
parse_budget = partial(parse_amount, units=UNITS | PLURALS, example="0.05PFLOP")


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("--config", required=True, help="FILE or FILE:field=value, without a row and a seed.")
  add("--rows", default="", help="The rows, separated by commas; the default is all.")
  add("--seeds", type=positive, default=3, help="The number of seeds, which begin at 0.")
  length = parser.add_mutually_exclusive_group()
  length.add_argument("--duration", help="The duration of every run, such as '2 epochs'.")
  words = "The floating-point operations of every run, such as 0.05PFLOP."
  length.add_argument("--budget", type=parse_budget, help=words)
  words = "The directory of the runs; the default is runs/reproduce_FILE."
  add("--workdir", metavar="DIR", help=words)
  add_output(parser)


def run(
  config: str,
  rows: str,
  seeds: int,
  duration: str | None,
  budget: float | None,
  workdir: str | None,
  **output: Any,
) -> int:
  """Trains, writes the results and returns the exit status."""
  from vitx.sweeps import points
  from vitx.sweeps.workers import restore_cores

  path, _ = split_text(config)
  names = find_rows(path, [row.strip() for row in rows.split(",") if row.strip()])
  texts = points.expand(config, {points.ROW: names})
  if duration is not None:
    texts = {row: join_text(text, [f"duration={duration!r}"]) for row, text in texts.items()}
  workdir = workdir or f"runs/reproduce_{points.name_file(path)}"
  if budget is not None:
    restore_cores(workdir, output["parallel"] or 1)
    texts = points.fit_budget(texts, budget)
  return run_points(points.make_points(texts, seeds), path, workdir, **output)
