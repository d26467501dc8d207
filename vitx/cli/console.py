"""The console of a command: what strangers' names would make a terminal do is shown, not done.

Names of classes and files, texts of configs and of other people's errors may hold control
characters, which move the cursor, hide lines or set the window's title. `guard` lets `print`,
`logging` and errors write them as escapes, such as `\\x1b`.
"""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from vitx.config.errors import escape

# What a write of our own, and of tqdm, begins with: over the line, or over the lines of a table.
_DRAWN = re.compile(r"\r(\033\[K)?|(\033\[\d+A\r)?\033\[J|\n*(\033\[A)+$")


class ConsoleGone(BaseException):
  """Nobody reads what is printed any more: no error, `head` has read enough."""


class _Console:
  """A stream that shows control characters as escapes; the rest is the stream's own."""

  def __init__(self, stream: TextIO):
    self._stream = stream

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)

  def write(self, text: str) -> int:
    drawn = _DRAWN.match(text)
    begin = drawn[0] if drawn else ""
    with self._noting_its_end():
      self._stream.write(begin + escape(text[len(begin) :]))
    return len(text)

  def flush(self) -> None:
    with self._noting_its_end():
      self._stream.flush()

  @contextlib.contextmanager
  def _noting_its_end(self) -> Iterator[None]:
    try:
      yield
    except BrokenPipeError as error:
      # The interpreter flushes it once more at its end, and would complain.
      with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
      raise ConsoleGone from error


def _escape_record(record: logging.LogRecord) -> bool:
  record.msg, record.args = escape(record.getMessage()), ()
  return True


@contextlib.contextmanager
def guard() -> Iterator[None]:
  """Guards the console, and the logger that vitx uses, while a `with` block runs.

  Raises:
    ConsoleGone: somebody has closed it, as `vitx ... | head` does.
  """
  logger = logging.getLogger("absl")
  logger.addFilter(_escape_record)  # a handler may hold the stream of before
  with contextlib.ExitStack() as stack:
    stack.callback(logger.removeFilter, _escape_record)
    stack.enter_context(contextlib.redirect_stdout(_Console(sys.stdout)))  # type: ignore[type-var]
    stack.enter_context(contextlib.redirect_stderr(_Console(sys.stderr)))  # type: ignore[type-var]
    try:
      yield
    finally:
      sys.stdout.flush()
