"""Compresses a file with a density model: `vitx compress --workdir runs/text book.txt`.

The compressed file has a header of about 150 bytes, and an arithmetic code that is made with the
model's probabilities. The number of bits of the code is about the model's negative log-likelihood
in bits. `vitx decompress` needs the same workdir, the same kind of device and the same versions of
vitx and JAX.

A model of images compresses an image file of the size that the model draws, or all images of a
`.npy` or `.npz` array, uint8 (n, height, width, channels). Any other model compresses any file.
"""

import argparse
from pathlib import Path
from typing import Any

from vitx.checkpoints.outputs import check_absent
from vitx.cli.flags import CHECKPOINT, DENSITY_RUN, add_trust

SUFFIX = ".vitx"


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("file", metavar="FILE", help="The file to compress.")
  add("--workdir", required=True, help=DENSITY_RUN)
  add("--out", metavar="FILE", help=f"The compressed file; the default is FILE{SUFFIX}.")
  words = "The number of parts of the file that are coded in parallel; more need more memory."
  add("--lanes", type=int, default=32, help=words)
  add("--checkpoint", default="best", help=CHECKPOINT)
  add_trust(add)


def run(file: str, workdir: str, out: str | None, **options: Any) -> None:
  """Compresses a file and prints its size before and after."""
  from vitx.inference.compress import compress

  path = choose_path(out, file + SUFFIX)
  compressed = compress(workdir, file, **options)
  path.write_bytes(compressed.data)
  size, code, count = len(compressed.data), compressed.code_bytes, compressed.header.count
  print(
    f"{path}: {Path(file).stat().st_size:,} bytes became {size:,}, of which {size - code} are the"
    f" header; {8 * code / count:.4f} bits per token, by the model"
    f" {compressed.bits / count:.4f} ({count:,} tokens)"
  )


def choose_path(out: str | None, default: str) -> Path:
  """Returns the path of the file to write: `out`, or `default` if `out` is None.

  Raises:
    ConfigError: No file can be written to the path, or `default` is needed and exists already.
  """
  from vitx.checkpoints.workdir import check_file

  check_file(default if out is None else out, "out")
  if out is None:
    check_absent([Path(default)], "give another file as --out")
  return Path(default if out is None else out)
