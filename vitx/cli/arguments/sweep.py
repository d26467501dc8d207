"""Trains a config over values of its fields and seeds, and compares them in a table.

    vitx sweep --config digits.py --over "row=[softmax,fnet]" --seeds 8 --workdir runs/mixers
    vitx sweep --config digits.py:softmax,duration=500 \\
      --over "learning_rate=[1e-3,2e-3],optimizer.weight_decay=[0,0.05]" --workdir runs/rates

Every combination is a run in an ordinary workdir of its own, DIR/NAME. The same command goes on
where it was stopped; started several times, also on machines that share the directory, each run is
trained by one of them. In the end OUT/NAME.md, .csv and _curves.png compare the methods with the
first: means, paired differences with their intervals, ranks. Exit status: 0 finished, 75 stopped by
SIGTERM or SIGINT with everything saved, 1 anything else.
"""

import argparse

from vitx.cli.arguments.kinds import TRUST


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("--config", required=True, help="FILE, FILE:ROW,field=value or a config.json; no seed")
  add("--over", help="field=[value,value],...; `row` stands for the file's rows")
  add("--seeds", type=int, default=1, help="how many, from 0")
  add("--workdir", required=True, metavar="DIR", help="where the runs lie; gs://... works too")
  add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments that say where the results go."""
  add = parser.add_argument
  add("--out", default="results", help="folder of the table (results)")
  add("--name", help="of the table (the workdir's name)")
  add("--plot", action=argparse.BooleanOptionalAction, default=True, help="draw the curves")
  add("--trust_code", action="store_true", help=TRUST)
