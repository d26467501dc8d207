"""How the text of a flag is read, beyond what `int` and `float` say."""

import argparse
from collections.abc import Callable

TRUST = "let a config.json, data set or run that the config names run Python of its own"


def add_trust(add: Callable[..., object]) -> None:
  """Declares `--trust_code` of a command that reads a config and no workdir."""
  add("--trust_code", action="store_true", dest="trust_config", help=TRUST)


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
