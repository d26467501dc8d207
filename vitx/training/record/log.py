"""What a run writes down: `metrics.jsonl`."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etils import epath

from vitx.checkpoints import own_files
from vitx.checkpoints.workdir import find_problem, find_run
from vitx.config.errors import ConfigError

_NAME = "metrics.jsonl"  # the file, where files can grow
ROW = {"kind": str, "step": int, "time?": {"seconds": float}}  # a row's own fields


class MetricsLog:
  """Rows of JSON, one a line, that can be cut back to what a checkpoint knew.

  In a local directory it is the file `metrics.jsonl`. An object store cannot append: there each
  `flush` writes the rows since the last one to `metrics-NNNNNNNN.jsonl`, numbered by its first row.
  Only the writing process (process 0) keeps rows; the others count them.

  Attributes:
    rows: how many there are.
    dropped: rows that were there and are forgotten.
  """

  def __init__(
    self, workdir: str | Path, *, write: bool, keep: int, appendable: bool | None = None
  ):
    """Opens the log and drops everything after the first `keep` rows, a torn last line included.

    Args:
      workdir: an existing directory, in which `metrics.jsonl` is no link.
      write: whether this process writes.
      keep: rows that stand.
      appendable: whether files can grow; `None` means unless the workdir is a URL (`gs://...`).

    Raises:
      ConfigError: no text, a damaged row, or fewer than `keep` rows are there.
    """
    self.rows = keep
    self.dropped: list[dict[str, Any]] = []
    self._workdir = epath.Path(workdir)
    self._write = write
    self._pending: list[str] = []
    self._appendable = "://" not in str(workdir) if appendable is None else appendable
    if write:
      own_files.check_no_link(str(self._workdir / _NAME))
      self._cut(keep)

  def append(self, row: dict[str, Any]) -> None:
    """Adds a row; `flush` makes it durable."""
    self.rows += 1
    if self._write:
      self._pending.append(json.dumps(row) + "\n")

  def flush(self) -> None:
    """Writes pending rows through to the disk."""
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
    standing = 0
    for path in _files(self._workdir):
      text = _read_text(path)
      lines = _split(text)
      own = lines[: keep - standing]
      for number, line in enumerate(own, 1):
        parse_row(line, path, number)
      self._remember(lines[keep - standing :])
      standing += len(own)
      if not own and path.name != _NAME:
        path.unlink()
      elif "".join(own) != text:
        own_files.replace(self._workdir, path.name, "".join(own))
    if standing < keep:
      raise ConfigError(
        f"{self._workdir / _NAME} has {standing} rows, the checkpoint that goes on knew"
        f" {keep}. Restore it from a copy, or choose another --workdir."
      )

  def _remember(self, lines: list[str]) -> None:
    for line in lines:
      with contextlib.suppress(ConfigError):  # somebody wrote into the file
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
  """Reads the rows of a run: dicts with `kind` (train, validation, test), `step` and figures.

  Of a run of several phases they are those of the last that has a checkpoint.

  Raises:
    ConfigError: a row is damaged; names its line.
  """
  rows = []
  for path in _files(epath.Path(find_run(workdir))):
    lines = _split(_read_text(path))
    rows += [parse_row(line, path, number) for number, line in enumerate(lines, 1)]
  return rows


def parse_row(line: str, path: epath.Path, number: int) -> dict[str, Any]:
  """Returns a row of metrics.

  Args:
    line: of JSON.
    path: of its file.
    number: of the line there, from 1.

  Raises:
    ConfigError: it is no row.
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
  """Returns a figure of a row of a run; raises ConfigError where it is missing."""
  value = row.get(name)
  if not isinstance(value, int | float):
    raise ConfigError(
      f"metrics.jsonl of workdir={str(workdir)!r}: the row of kind {row['kind']!r} at step"
      f" {row['step']} lacks {name}. Restore it from a copy."
    )
  return value


def _split(text: str) -> list[str]:
  """Returns lines; what has no newline was torn by a kill. No other character ends a row."""
  *lines, _ = text.split("\n")
  return [f"{line}\n" for line in lines]
