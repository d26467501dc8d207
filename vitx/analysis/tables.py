"""Lays out the tables that commands print."""

from collections.abc import Sequence

from vitx.config.errors import escape


def lay_out(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
  """Returns a table as lines of text with aligned columns.

  Args:
    rows: The rows; the first is the header, and all have equally many cells.
    right: The indices of the right-aligned columns.
  """
  rows = [[escape(cell, line=True) for cell in row] for row in rows]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  pad = [str.rjust if number in right else str.ljust for number in range(len(widths))]
  lines = (
    "  ".join(fit(cell, width) for fit, cell, width in zip(pad, row, widths, strict=True))
    for row in rows
  )
  return "\n".join(line.rstrip() for line in lines)
