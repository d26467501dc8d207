"""Help texts and parsers of arguments that several commands share.

This file imports nothing slow: JAX, Flax and TensorFlow are imported by a command's `run`.
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
  """Declares `--trust_code`, which is in force while the command's `run` is called."""
  add("--trust_code", action="store_true", help=words)


class OutFile(argparse.Action):
  """An action for the path of an output file; it checks early that the file can be written."""

  def __call__(
    self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
  ) -> None:
    check_file(values, self.dest)
    setattr(namespace, self.dest, values)


def names(text: str) -> list[str]:
  """Returns the names of a text that separates them by commas."""
  return text.split(",")


def positives(text: str) -> list[int]:
  """Returns the positive integers of a text that separates them by commas.

  Raises:
    argparse.ArgumentTypeError: A part is not a positive integer.
  """
  found = integers(text)
  if min(found) < 1:
    raise argparse.ArgumentTypeError(f"{text!r}: must be at least 1")
  return list(found)


def positive(text: str) -> int:
  """Returns a positive integer.

  Raises:
    argparse.ArgumentTypeError: The text is not one positive integer.
  """
  found = positives(text)
  if len(found) > 1:
    raise argparse.ArgumentTypeError(f"{text!r}: write one positive integer, such as {found[0]}")
  return found[0]


def integers(text: str) -> tuple[int, ...]:
  """Returns the integers of a text that separates them by commas.

  Raises:
    argparse.ArgumentTypeError: A part is not an integer.
  """
  try:
    return tuple(int(part) for part in text.split(","))
  except ValueError:
    raise argparse.ArgumentTypeError(
      f"{text!r}: write integers separated by commas, such as 256,1024"
    ) from None
