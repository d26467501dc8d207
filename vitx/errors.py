"""Errors that name the field, the value and the fix."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
  """A setting that cannot work. The message names the field, the value and the fix."""


class MissingExtraError(ImportError):
  """An optional dependency is not installed. The message names the extra to install."""

  def __init__(self, feature: str, extra: str):
    super().__init__(f'{feature} needs the extra "{extra}": pip install -e ".[{extra}]"')


def nearest(name: str, choices: Iterable[str]) -> str:
  """Returns " Did you mean 'x'?" for the choice closest to `name`, or "" if none is close."""
  close = difflib.get_close_matches(str(name), [str(choice) for choice in choices], n=1)
  return f" Did you mean {close[0]!r}?" if close else ""


def listing(choices: Iterable[str]) -> str:
  """Returns the choices sorted, separated by commas."""
  return ", ".join(sorted(str(choice) for choice in choices))
