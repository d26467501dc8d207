"""Compresses a file with a density model: `vitx compress --workdir runs/text book.txt`.

The arithmetic code of the model's own probabilities: as many bits as the model says, and a header
of some 200 bytes. `vitx decompress` needs the same workdir, the same kind of device and the same
versions. A model of images codes an image file of its size, or all images of a `.npy` or `.npz`
array uint8 (n, height, width, channels); any other model any file.
"""

import argparse

SUFFIX = ".vitx"
LANES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  add = parser.add_argument
  add("file", metavar="FILE", help="an image or an array of images, or any file")
  add("--workdir", required=True, help="of a density model's run")
  add("--out", metavar="FILE", help=f"to write; FILE{SUFFIX} by default")
  add("--lanes", type=int, default=LANES, help="windows coded at a time")
  add("--checkpoint", default="best", help="best, latest or a step")
  add("--trust_code", action="store_true", help="let the run's config name Python of its own")
