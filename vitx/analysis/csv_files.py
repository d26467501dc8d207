"""CSV files whose cells a spreadsheet shows as text and does not compute.

A spreadsheet takes a cell that begins with one of `= + - @` for a formula, which may open links and
start programs. So `guard` puts an apostrophe before a text of that form, for example the name of a
class; `read` removes the apostrophe. Numbers are unchanged, even if they are written as text.
"""

import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from vitx.config.errors import naming

Add = Callable[[Iterable[Any]], Any]  # A function that writes a row.
# Spreadsheets in East Asia also read the wide forms; some skip whitespace before the sign.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")


def guard(cell: Any) -> Any:
  """Returns a cell, with an apostrophe before a text that looks like a formula."""
  if not isinstance(cell, str) or not _FORMULA.match(cell) or _is_number(cell):
    return cell
  return f"'{cell}"


def unguard(cell: str) -> str:
  """Removes the apostrophe that `guard` put before a cell, if there is one."""
  return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return text.strip() == text


def _make_adder(file: TextIO) -> Add:
  writer = csv.writer(file)
  return lambda row: writer.writerow(map(guard, row))


@contextlib.contextmanager
def create(path: str | Path) -> Iterator[Add]:
  """Creates a CSV file, and yields a function that writes a row of cells to it.

  Raises:
    OSError: The file cannot be written; the message has its path.
  """
  with naming(path), open(path, "w", newline="", encoding="utf-8") as file:
    yield _make_adder(file)


def write(path: str | Path, rows: Iterable[Iterable[Any]]) -> None:
  """Writes rows of cells to a CSV file; the first row is the header.

  Raises:
    OSError: The file cannot be written; the message has its path.
  """
  with create(path) as add:
    for row in rows:
      add(row)


def write_records(path: str | Path, records: Sequence[Mapping[str, Any]]) -> None:
  """Writes dicts to a CSV file: a row for each dict, a column for each key of any dict.

  Raises:
    OSError: The file cannot be written; the message has its path.
  """
  with naming(path):
    Path(path).write_text(format_records(records), encoding="utf-8", newline="")


def format_records(records: Sequence[Mapping[str, Any]]) -> str:
  """Returns dicts as the text of a CSV file: a row for each dict, a column for each key."""
  heads, file = dict.fromkeys(key for record in records for key in record), io.StringIO()
  add = _make_adder(file)
  add(heads)
  for record in records:
    add(record.get(head, "") for head in heads)
  return file.getvalue()


def read(path: str | Path) -> list[dict[str, str]]:
  """Reads a CSV file that this module wrote: one dict for each row, keyed by the header's names.

  Raises:
    OSError, UnicodeDecodeError: The file cannot be read.
  """
  with open(path, newline="", encoding="utf-8") as file:
    reader = csv.DictReader(file, restval="")
    names = reader.fieldnames or ()
    return [{unguard(name): unguard(row[name]) for name in names} for row in reader]
