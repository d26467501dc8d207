"""CSV files that a spreadsheet shows and does not compute.

A spreadsheet takes a cell that begins with one of `= + - @` for a formula, which may open links and
start programs. A text that begins so, a class name perhaps, gets an apostrophe before it; a number,
also one written as text, stays as it is. `read` takes the apostrophe off again.
"""

import contextlib
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from vitx.config.errors import naming

# Spreadsheets of East Asia read the wide forms too; some skip blanks before the sign.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")


def guard(cell: Any) -> Any:
  """Returns a cell; a text that is no number and would be a formula has an apostrophe before it."""
  if not isinstance(cell, str) or not _FORMULA.match(cell) or _is_number(cell):
    return cell
  return f"'{cell}"


def unguard(cell: str) -> str:
  """Returns the cell of which `guard` made this one."""
  return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return text.strip() == text


class Table:
  """Writes rows to an open file, `newline=""`."""

  def __init__(self, file: TextIO):
    self._writer = csv.writer(file)

  def add(self, row: Iterable[Any]) -> None:
    """Writes a row."""
    self._writer.writerow(map(guard, row))


@contextlib.contextmanager
def create(path: str | Path) -> Iterator[Table]:
  """Creates a file. Raises OSError, with its path, for one that cannot be written to its end."""
  with naming(path), open(path, "w", newline="", encoding="utf-8") as file:
    yield Table(file)


def write(path: str | Path, rows: Iterable[Iterable[Any]]) -> None:
  """Writes a file, of which the first row is the head. Raises like `create`."""
  with create(path) as table:
    for row in rows:
      table.add(row)


def write_records(path: str | Path, records: Sequence[Mapping[str, Any]]) -> None:
  """Writes a row for each record under the keys of all. Raises like `create`."""
  with naming(path):
    Path(path).write_text(format_records(records), encoding="utf-8", newline="")


def format_records(records: Sequence[Mapping[str, Any]]) -> str:
  """Returns a file's text: a row for each record under the keys of all, in their order."""
  heads, file = dict.fromkeys(key for record in records for key in record), io.StringIO()
  table = Table(file)
  table.add(heads)
  for record in records:
    table.add(record.get(head, "") for head in heads)
  return file.getvalue()


def read(path: str | Path) -> list[dict[str, str]]:
  """Reads the rows of a file that this module wrote, by the names in its first row.

  Raises:
    OSError, UnicodeDecodeError: it cannot be read.
  """
  with open(path, newline="", encoding="utf-8") as file:
    reader = csv.DictReader(file, restval="")
    names = reader.fieldnames or ()
    return [{unguard(name): unguard(row[name]) for name in names} for row in reader]
