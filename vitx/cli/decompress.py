"""Restores a file that `vitx compress` wrote: `vitx decompress --workdir runs/text book.txt.vitx`.

The output is identical to the original file, byte for byte; an image, which is written as PNG, or
an array is identical in its values. Decompression needs the workdir, the kind of device and the
versions of vitx and JAX that compressed the file.
"""

import argparse
from pathlib import Path

from vitx.cli.compress import SUFFIX, choose_path
from vitx.cli.flags import add_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("file", metavar="FILE", help="A file that vitx compress wrote.")
  add("--workdir", required=True, help="The workdir that compressed the file.")
  add(
    "--out",
    metavar="FILE",
    help=f"The restored file; the default drops {SUFFIX} and names an image .png.",
  )
  add_trust(add)


def run(file: str, workdir: str, out: str | None) -> None:
  """Decompresses a file and prints the path of the result."""
  from vitx.inference.compress import decompress, to_file, unpack

  kind, default = unpack(file)[0].kind, Path(file.removesuffix(SUFFIX))
  path = choose_path(out, str(default.with_suffix(".png") if kind == "image" else default))
  path.write_bytes(to_file(kind, decompress(workdir, file), path.suffix))
  print(f"{path}: {path.stat().st_size:,} bytes")
