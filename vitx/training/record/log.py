"""The file `metrics.jsonl` of a workdir, with a row for each log line and evaluation of a run."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etils import epath

from vitx.checkpoints import own_files
from vitx.checkpoints.workdir import find_problem, find_run
from vitx.config.errors import ConfigError

_NAME = "metrics.jsonl"  # the name of the log's file outside object stores
ROW = {"kind": str, "step": int, "time?": {"seconds": float}}  # the fields that all rows share


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
      workdir: An existing directory or URL (`gs://...`), in which `metrics.jsonl` is no link.
      write: Whether this process writes rows.
      keep: The number of rows to keep, which the checkpoint of a continued run counts.

    Raises:
      ConfigError: The file is no text, has a damaged row, or has fewer than `keep` rows.
    """
    self.rows = keep
    self.dropped: list[dict[str, Any]] = []
    self._workdir = epath.Path(workdir)
    self._write = write
    self._pending: list[str] = []
    self._appendable = "://" not in str(workdir)
    if write:
      own_files.check_no_link(str(self._workdir / _NAME))
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
      own_files.append(self._workdir, _NAME, text, sync=True)
    else:
      first = self.rows - len(self._pending)
      own_files.replace(self._workdir, f"metrics-{first:08d}.jsonl", text)
    self._pending = []

  def _cut(self, keep: int) -> None:
    kept = 0
    for path in _files(self._workdir):
      text = _read_text(path)
      lines = _split(text)
      own = lines[: keep - kept]
      for number, line in enumerate(own, 1):
        parse_row(line, path, number)
      self._remember(lines[keep - kept :])
      kept += len(own)
      if not own and path.name != _NAME:
        path.unlink()
      elif "".join(own) != text:
        own_files.replace(self._workdir, path.name, "".join(own))
    if kept < keep:
      raise ConfigError(
        f"{self._workdir / _NAME} has {kept} rows, but the checkpoint from which the run continues"
        f" counts {keep}. Restore the file from a copy, or choose another --workdir."
      )

  def _remember(self, lines: list[str]) -> None:
    for line in lines:
      with contextlib.suppress(ConfigError):  # the line is no row
        self.dropped.append(parse_row(line, self._workdir, 0))


def _read_text(path: epath.Path) -> str:
  try:
    return own_files.read(path.parent, path.name).decode()
  except UnicodeDecodeError as error:
    raise ConfigError(f"{path} is damaged ({error}). Restore it from a copy.") from error


def _files(workdir: epath.Path) -> list[epath.Path]:
  whole = workdir / _NAME
  return ([whole] if whole.exists() else []) + sorted(workdir.glob("metrics-*.jsonl"))


def read_metrics(workdir: str | Path) -> list[dict[str, Any]]:
  """Reads the rows of a run: dicts with `kind`, `step` and figures.

  The kinds are train, validation and test, and test_seen for the evaluations that
  `evaluation.on_test` adds.

  For a run of several phases, these are the rows of the last phase that has a checkpoint.

  Raises:
    ConfigError: A row is damaged; the message names its line.
  """
  rows = []
  for path in _files(epath.Path(find_run(workdir))):
    lines = _split(_read_text(path))
    rows += [parse_row(line, path, number) for number, line in enumerate(lines, 1)]
  return rows


def parse_row(line: str, path: epath.Path, number: int) -> dict[str, Any]:
  """Parses a line of the file of metrics.

  Args:
    line: The line, which should be JSON.
    path: The file of the line, for errors.
    number: The number of the line in the file, from 1, for errors.

  Raises:
    ConfigError: The line is no row.
  """
  try:
    row = json.loads(line)
    problem = find_problem(row, ROW)
  except (ValueError, RecursionError) as error:
    problem = str(error)
  if problem:
    raise ConfigError(f"line {number} of {path} is damaged ({problem}). Restore it from a copy.")
  return row


def read_figure(row: Mapping[str, Any], name: str, workdir: str | Path) -> Any:
  """Returns a figure from a row of a run; raises ConfigError if it is missing."""
  value = row.get(name)
  if not isinstance(value, int | float):
    raise ConfigError(
      f"metrics.jsonl of workdir={str(workdir)!r}: the row of kind {row['kind']!r} at step"
      f" {row['step']} lacks {name}. Restore the file from a copy."
    )
  return value


def _split(text: str) -> list[str]:
  """Splits a text into its complete lines.

  A last line without a newline, which a killed process leaves, is dropped. Only a newline ends a
  line.
  """
  *lines, _ = text.split("\n")
  return [f"{line}\n" for line in lines]
