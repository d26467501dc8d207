"""Undoes `vitx compress`: `vitx decompress --workdir runs/text book.txt.vitx`.

The output is identical to the compressed file, byte for byte; an image or an array is identical in
its values. Decompression needs the workdir that compressed the file, the same kind of device and
the same versions.
"""

import argparse

from vitx.checkpoints.outputs import write_file
from vitx.cli.compress import SUFFIX, choose_path
from vitx.cli.flags import TRUST_RUN, add_trust
from vitx.config.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("file", metavar="FILE", help="written by vitx compress")
  add("--workdir", required=True, help="of the run that compressed it")
  add("--out", metavar="FILE", help=f"to write; FILE without {SUFFIX} by default")
  add_trust(add, TRUST_RUN)


def run(file: str, workdir: str, out: str | None) -> None:
  """Decompresses a file and prints the path of the result."""
  from vitx.inference.code_file import read
  from vitx.inference.compress import decompress, to_file

  if out is None and not file.endswith(SUFFIX):
    raise ConfigError(f"{file} does not end in {SUFFIX}; name the file to write with --out")
  path = choose_path(out, file.removesuffix(SUFFIX))
  found = decompress(workdir, file)
  write_file(path, to_file(read(file)[0].kind, found, path.suffix))
  print(f"{path}: {path.stat().st_size:,} bytes")
