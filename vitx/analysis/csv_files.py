"""Reads and writes CSV files."""

import contextlib
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any


def open_file(path: str | Path, mode: str = "r") -> IO[str]:
  """Opens a CSV file in UTF-8; names of files in it that are no UTF-8 keep their bytes."""
  return open(path, mode, newline="", encoding="utf-8", errors="surrogateescape")


@contextlib.contextmanager
def create(path: str | Path) -> Iterator[Callable[[Iterable[Any]], Any]]:
  """Creates a CSV file, and yields a function that writes a row of cells to it."""
  with open_file(path, "w") as file:
    yield csv.writer(file).writerow


def write(path: str | Path, rows: Iterable[Iterable[Any]]) -> None:
  """Writes rows of cells to a CSV file; the first row is the header."""
  with create(path) as add:
    for row in rows:
      add(row)


def write_records(path: str | Path, records: Sequence[Mapping[str, Any]]) -> None:
  """Writes dicts to a CSV file: a row for each dict, a column for each key of any dict."""
  with open_file(path, "w") as file:
    file.write(format_records(records))


def format_records(records: Sequence[Mapping[str, Any]]) -> str:
  """Returns dicts as the text of a CSV file: a row for each dict, a column for each key."""
  file = io.StringIO()
  writer = csv.DictWriter(file, list(dict.fromkeys(key for record in records for key in record)))
  writer.writeheader()
  writer.writerows(records)
  return file.getvalue()
