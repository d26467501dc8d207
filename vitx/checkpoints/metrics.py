"""The file `metrics.jsonl` of a workdir, with a row for each log line and evaluation of a run."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from vitx.checkpoints.workdir import find_run, join, read_phases
from vitx.config.errors import ConfigError
from vitx.files import replace_text

_NAME = "metrics.jsonl"  # the name of the log's file outside object stores


class MetricsLog:
  """The file of metrics, to which rows are appended.

  A row is a line of JSON. In a local directory all rows are in `metrics.jsonl`. An object store
  cannot append: there each `flush` writes the rows since the last flush to another file,
  `metrics-NNNNNNNN.jsonl`, where NNNNNNNN is the number of the first of these rows. Only process 0
  writes rows; the other processes count them.

  Attributes:
    rows: The number of rows.
    dropped: The rows that were dropped when the log was opened.
  """

  def __init__(self, workdir: str | Path, *, write: bool, keep: int):
    """Opens the log and drops all rows after the first `keep`, and a half-written last line.

    Args:
      workdir: An existing directory or URL (`gs://...`).
      write: Whether this process writes rows.
      keep: The number of rows to keep, which the checkpoint of a continued run counts.
    """
    self.rows = keep
    self.dropped: list[dict[str, Any]] = []
    self._workdir = epath.Path(workdir)
    self._write = write
    self._pending: list[str] = []
    self._appendable = "://" not in str(workdir)
    if write:
      self._cut(keep)

  def append(self, row: dict[str, Any]) -> None:
    """Adds a row; `flush` makes it durable."""
    self.rows += 1
    if self._write:
      self._pending.append(json.dumps(row) + "\n")

  def flush(self) -> None:
    """Writes the rows that were added since the last flush, through to the disk."""
    if not self._pending:
      return
    text = "".join(self._pending)
    if self._appendable:
      with open(self._workdir / _NAME, "a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    else:
      first = self.rows - len(self._pending)
      replace_text(self._workdir / f"metrics-{first:08d}.jsonl", text)
    self._pending = []

  def _cut(self, keep: int) -> None:
    count = 0
    for path in _files(self._workdir):
      text = path.read_text()
      lines = _split(text)
      rows = lines[: keep - count]
      for line in lines[keep - count :]:
        with contextlib.suppress(ValueError):  # the line is no row
          self.dropped.append(json.loads(line))
      count += len(rows)
      if not rows and path.name != _NAME:
        path.unlink()
      elif "".join(rows) != text:
        replace_text(path, "".join(rows))
    if count < keep:
      raise ConfigError(
        f"{self._workdir / _NAME} has {count} rows, but the checkpoint from which the run continues"
        f" counts {keep}. Restore the file from a copy, or choose another --workdir."
      )


def _files(workdir: epath.Path) -> list[epath.Path]:
  whole = workdir / _NAME
  return ([whole] if whole.exists() else []) + sorted(workdir.glob("metrics-*.jsonl"))


def read_metrics(workdir: str | Path) -> list[dict[str, Any]]:
  """Reads the rows of a run: dicts with `kind`, `step` and figures.

  The kinds are train, validation and test, and test_seen for the evaluations that
  `evaluation.on_test` adds.

  For a run of several phases, these are the rows of the last phase that has a checkpoint.
  """
  rows = []
  for path, number, line in _read_lines(find_run(workdir)):
    try:
      rows.append(json.loads(line))
    except ValueError as error:
      raise ConfigError(f"line {number} of {path} is damaged: {error}") from error
  return rows


def read_test_row(workdir: str | Path) -> dict[str, Any] | None:
  """Returns the row of a run's metrics on *test*; None until its last phase has ended."""
  run, phases = find_run(workdir), read_phases(workdir)
  if phases and run != join(workdir, phases[-1]):
    return None
  # To parse all rows would take 30 times as long, and a sweep asks often.
  rows = (json.loads(line) for _, _, line in _read_lines(run) if '"test"' in line)
  return next((row for row in rows if row["kind"] == "test"), None)


def _read_lines(workdir: str) -> Iterator[tuple[epath.Path, int, str]]:
  """Yields the lines of a run's rows, each with its file and its number there."""
  for path in _files(epath.Path(workdir)):
    for number, line in enumerate(_split(path.read_text()), 1):
      yield path, number, line


def _split(text: str) -> list[str]:
  """Splits a text into its complete lines."""
  *lines, _ = text.split("\n")
  return [f"{line}\n" for line in lines]
