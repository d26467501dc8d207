"""Prints a whole config as JSON, a recipe to copy: `vitx config FILE:ROW,field=value > mine.json`.

It has every field, also those of the named choices that the row leaves at their defaults, and
`vitx train --config mine.json` trains as the row does, to the bit. `--explain` prints a table of
the fields instead: value, what the field takes, what it means.
"""

import argparse

from vitx.cli.flags import add_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  parser.add_argument("config", metavar="CONFIG", help="FILE, FILE:ROW,field=value, a config.json")
  add_trust(parser.add_argument)
  parser.add_argument("--explain", action="store_true", help="a table of fields, for reading")
