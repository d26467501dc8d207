"""Prepares a data set for training: `vitx prepare NAME [--data_dir D] [--from PATH]`.

NAME is `digits`, `tiny_imagenet` (with --from tiny-imagenet-200.zip or its directory) or a data set
of TFDS, such as `cifar10` or `imagenette/320px-v2`. A TFDS set is downloaded and written in the
format ArrayRecord. This needs TensorFlow (the extra `prepare`); reading the written set does not.
With --from DIR, a TFDS set is converted from a TFRECORD copy in DIR instead, without a download and
without TensorFlow.
"""

import argparse

from vitx.cli.flags import add_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("name", metavar="NAME", help="digits, tiny_imagenet or the name of a TFDS set.")
  add_trust(add)
  add("--data_dir", help="The TFDS folder to write to.")
  words = "A TFRECORD copy of the data set to convert, or the archive of tiny_imagenet."
  add("--from", dest="source", metavar="PATH", help=words)


def run(name: str, data_dir: str | None, source: str | None) -> None:
  """Prepares a data set and prints its path."""
  from vitx.data.prepare import prepare

  print(f"{name} is ready in {prepare(name, data_dir, source)}")
