"""Exceptions and error messages, which name the field, the value and the fix."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator

# Characters that control a terminal or change the direction of text, and lone surrogates, which
# UTF-8 cannot encode.
_OBEYED = re.compile(
  r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape(text: str, *, line: bool = False) -> str:
  """Escapes the control characters in a text, such as `\\x1b`, which would control a terminal.

  Args:
    text: A text that may contain a name from an untrusted file.
    line: Whether the text is part of a line, so that newlines and tabs are escaped too.
  """
  text = _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
  return text.replace("\t", "\\t").replace("\n", "\\n") if line else text


class UserError(Exception):
  """An error whose message is all that a user needs; a command prints it without a traceback."""

  def __init__(self, message: str):
    super().__init__(escape(message))


class ConfigError(UserError, ValueError):
  """A setting that cannot work. The message names the field, the value and the fix."""


class UnreadableError(ConfigError):
  """A file or an example that cannot be read. The message names it, or all of several."""


class MissingExtraError(UserError, ImportError):
  """An optional dependency is not installed. The message names the extra to install."""

  def __init__(self, feature: str, extra: str):
    super().__init__(f'{feature} needs the extra "{extra}": pip install -e ".[{extra}]"')


@contextlib.contextmanager
def importing(feature: str, extra: str) -> Iterator[None]:
  """Turns a failed import in a `with` block into a MissingExtraError about a feature."""
  try:
    yield
  except ImportError as error:
    raise MissingExtraError(feature, extra) from error


@contextlib.contextmanager
def naming(place: str) -> Iterator[None]:
  """Puts the name of a place, such as a field or a file, before a ConfigError of a `with` block."""
  try:
    yield
  except ConfigError as error:
    raise ConfigError(f"{place}: {error}") from error


def nearest(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str:
  """Returns " Did you mean 'x'?" for the choice closest to `name`, or "" if none is close.

  `cutoff` is the smallest share of equal characters, see `difflib.get_close_matches`.
  """
  close = difflib.get_close_matches(str(name), [str(choice) for choice in choices], 1, cutoff)
  return f" Did you mean {close[0]!r}?" if close else ""


def listing(choices: Iterable[str]) -> str:
  """Returns the sorted choices, separated by commas."""
  return ", ".join(sorted(str(choice) for choice in choices))
