"""Undoes `vitx compress`: `vitx decompress --workdir runs/text book.txt.vitx`.

The file that comes out is the one that went in, byte for byte; of an image or an array, value for
value. Needs the workdir that compressed, on the same kind of device with the same versions.
"""

import argparse

from vitx.cli.arguments.compress import SUFFIX


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("file", metavar="FILE", help="written by vitx compress")
  add("--workdir", required=True, help="of the run that compressed it")
  add("--out", metavar="FILE", help=f"to write; FILE without {SUFFIX} by default")
  add("--trust_code", action="store_true", help="let the run's config name Python of its own")
