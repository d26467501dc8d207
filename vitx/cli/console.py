"""Shows control characters in the output as text, so that the terminal does not obey them.

Class names, file names, config texts and other libraries' errors may contain control characters,
which move the cursor, hide lines or set the window's title. `guard` makes `print`, `logging` and
errors write them as escapes, such as `\\x1b`.
"""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from vitx.config.errors import escape

# Our own writes, and those of tqdm, may begin with these sequences: they redraw a line or a table.
_DRAWN = re.compile(r"\r(\033\[K)?|(\033\[\d+A\r)?\033\[J|\n*(\033\[A)+$")


class ConsoleGone(BaseException):
  """The program that reads the output has ended, as `head` does once it has read enough."""


def say(message: str) -> None:
  """Prints a message about the progress of a command to stderr."""
  print(message, file=sys.stderr, flush=True)


class _Console:
  """A wrapper of a stream that writes control characters as escapes.

  Sequences that redraw a line or a table are written unchanged, at the beginning of a text only.
  """

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
      # The interpreter flushes the stream once more when it exits, and would print an error.
      with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
      raise ConsoleGone from error


def _escape_record(record: logging.LogRecord) -> bool:
  record.msg, record.args = escape(record.getMessage()), ()
  return True


@contextlib.contextmanager
def guard() -> Iterator[None]:
  """Escapes control characters in everything that a `with` block prints or logs."""
  logger = logging.getLogger("absl")
  logger.addFilter(_escape_record)  # A handler may still refer to the unguarded stream.
  with contextlib.ExitStack() as stack:
    stack.callback(logger.removeFilter, _escape_record)
    stack.enter_context(contextlib.redirect_stdout(_Console(sys.stdout)))  # type: ignore[type-var]
    stack.enter_context(contextlib.redirect_stderr(_Console(sys.stderr)))  # type: ignore[type-var]
    try:
      yield
    finally:
      sys.stdout.flush()
