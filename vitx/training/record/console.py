"""Copies all output of a run to the file `log.txt` of its workdir."""

import contextlib
import datetime
import io
import logging as std_logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from absl import logging
from etils import epath

from vitx.config.errors import escape
from vitx.runtime.signals import Interrupted

LOG = "log.txt"
_DRAWN_OVER = re.compile(r"\r(?:\033\[K)?")  # the beginning of a line of progress


class _Log(io.TextIOBase):
  """The log file, to which text is appended; an object store gets the whole text on closing."""

  def __init__(self, workdir: str | Path):
    self._workdir, self._appendable = workdir, "://" not in str(workdir)
    self._kept: list[str] = []

  def write(self, text: str) -> int:
    if self._appendable:
      # A log that cannot be written must not end the run: the disk may be full.
      path = epath.Path(self._workdir) / LOG
      with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
        file.write(escape(text))
    else:
      self._kept.append(escape(text))
    return len(text)

  def close(self) -> None:
    if self._kept:
      with contextlib.suppress(OSError):
        path = epath.Path(self._workdir) / LOG
        before = path.read_text() if path.exists() else ""
        path.write_text(before + "".join(self._kept))
      self._kept = []
    super().close()


class _Both:
  """A stream that writes to the console and to a log."""

  def __init__(self, console: TextIO, log: _Log):
    self._console, self._log = console, log
    self._is_open = False  # whether the log's last line lacks a newline

  def write(self, text: str) -> int:
    drawn = _DRAWN_OVER.match(text)
    line = escape(text[drawn.end() :] if drawn else text)
    self._console.write(f"{drawn[0]}{line}" if drawn else line)
    if drawn and self._is_open:
      line = f"\n{line}"
    if line:
      self._log.write(line)
      self._is_open = not line.endswith("\n")
    return len(text)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._console, name)


@contextlib.contextmanager
def keep_log(workdir: str | Path, *, write: bool) -> Iterator[None]:
  """Copies what a `with` block prints, its warnings and its error, to the file `log.txt`.

  A line with the time precedes the copy.

  Args:
    workdir: A directory or URL that exists.
    write: Whether this process writes the file.
  """
  if not write:
    yield
    return
  logger = logging.get_absl_logger()
  with _Log(workdir) as log:
    log.write(f"--- {datetime.datetime.now().astimezone().isoformat(' ', 'seconds')}\n")
    handler = std_logging.StreamHandler(log)
    logger.addHandler(handler)
    try:
      with contextlib.redirect_stdout(_Both(sys.stdout, log)):  # type: ignore[type-var]
        yield
    except Interrupted:
      log.write("stopped by a signal; the same command continues the run\n")
      raise
    except Exception as error:
      log.write(f"{type(error).__name__}: {error}\n")
      raise
    finally:
      logger.removeHandler(handler)
