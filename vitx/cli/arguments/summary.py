"""What a config's rows are and cost, without data or training: `vitx summary`.

    vitx summary --config configs/vix_cifar10.py              # a table of its rows
    vitx summary --config configs/vix_cifar10.py --no-memory  # compiles nothing: quick
    vitx summary --config configs/vix_cifar10.py:vip          # the layers of one row
    vitx summary --config configs/vix_cifar10.py:posemb=rope  # rows with an override

Parameters are counted twice: all of them, and as torchsummary counts, which several papers print.
FLOPs are of the forward pass of one image on the path that the rows pick, a multiply-add counted as
two. Memory is what a training step of the row's whole batch needs, compiled for the device at hand,
never run. Beside them stand the figures that the config quotes from its source.
"""

import argparse

from vitx.cli.flags import add_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  parser.add_argument(
    "--config", required=True, help="FILE, FILE:ROW,field=value, FILE:field=... or a config.json"
  )
  add_trust(parser.add_argument)
  parser.add_argument(
    "--memory",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="compile training steps: seconds a row",
  )
