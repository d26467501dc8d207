"""Trains a model, or goes on where its run stopped.

    vitx train --config configs/digits.py --workdir runs/digits
    vitx train --config configs/digits.py:performer,seed=3 --config.model.depth=2 --workdir runs/p

Exit status: 0 finished, 75 stopped by SIGTERM or SIGINT with everything saved (the same command
goes on), 1 anything else.
"""

import argparse

from vitx.cli.arguments.kinds import TRUST

CONFIG = "FILE, FILE:ROW,field=value or a config.json; --config.field=value overrides too"


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("--config", required=True, help=CONFIG)
  add("--workdir", required=True, help="where the run keeps everything; gs://... works too")
  add("--dry_run", action="store_true", help="compile, print memory and seconds per step, exit")
  add("--trust_code", action="store_true", help=TRUST)
  add("--coordinator", metavar="HOST:PORT", help="of process 0, of several hosts")
  add("--processes", type=int, help="how many processes there are")
  add("--process", type=int, help="which process this is, from 0")
