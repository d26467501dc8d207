"""How commands print tables and write files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def lay_out(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
  """Returns rows of cells as lines with aligned columns.

  Args:
    rows: the first is the head; all have the same number of cells.
    right: the columns, from 0, that are aligned at their right end.
  """
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  pad = [str.rjust if number in right else str.ljust for number in range(len(widths))]
  lines = (
    "  ".join(fit(cell, width) for fit, cell, width in zip(pad, row, widths, strict=True))
    for row in rows
  )
  return "\n".join(line.rstrip() for line in lines)


def write_json(path: str | Path, value: Any) -> None:
  """Writes a JSON file, for people and programs."""
  Path(path).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
