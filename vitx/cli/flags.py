"""The words of arguments that several commands take, and how their texts are read.

Nothing here imports what takes long: JAX, Flax and TensorFlow come with a command's `run`.
"""

import argparse
from collections.abc import Callable
from typing import Any

from vitx.checkpoints.outputs import check_file

CHECKPOINT = "best, latest or a step"
CONFIG = "FILE, FILE:ROW,field=value or a config.json"
DATA_DIR = "where TFDS sets lie, if not where the run found them"
DENSITY_RUN = "of a density model's run"
RUN = "of a training run"
TRUST = "let a config.json, data set or run that the config names run Python of its own"
TRUST_RUN = "let the run's config name Python of its own"


def add_trust(add: Callable[..., object], words: str = TRUST) -> None:
  """Declares `--trust_code`, which holds while the command's `run` is called."""
  add("--trust_code", action="store_true", help=words)


class OutFile(argparse.Action):
  """Takes the path of a file that a command writes in the end, if one can be written there."""

  def __call__(
    self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
  ) -> None:
    check_file(values, self.dest)
    setattr(namespace, self.dest, values)


def names(text: str) -> list[str]:
  """Returns names that are separated by commas."""
  return text.split(",")


def positives(text: str) -> list[int]:
  """Returns positive integers that are separated by commas.

  Raises:
    argparse.ArgumentTypeError: one is none.
  """
  found = integers(text)
  if min(found) < 1:
    raise argparse.ArgumentTypeError(f"{text!r}: must be at least 1")
  return list(found)


def positive(text: str) -> int:
  """Returns a positive integer.

  Raises:
    argparse.ArgumentTypeError: the text is none.
  """
  found = positives(text)
  if len(found) > 1:
    raise argparse.ArgumentTypeError(f"{text!r}: write one positive integer, such as {found[0]}")
  return found[0]


def integers(text: str) -> tuple[int, ...]:
  """Returns integers that are separated by commas.

  Raises:
    argparse.ArgumentTypeError: one is none.
  """
  try:
    return tuple(int(part) for part in text.split(","))
  except ValueError:
    raise argparse.ArgumentTypeError(
      f"{text!r}: write integers separated by commas, such as 256,1024"
    ) from None
