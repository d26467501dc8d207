"""The layout of tables that commands print."""

from collections.abc import Sequence

from vitx.config.errors import escape


def lay_out(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
  """Aligns the columns of a table and returns its lines.

  Args:
    rows: The rows; the first is the head, and all have the same number of cells.
    right: The numbers, from 0, of the right-aligned columns.
  """
  rows = [[escape(cell, line=True) for cell in row] for row in rows]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  pad = [str.rjust if number in right else str.ljust for number in range(len(widths))]
  lines = (
    "  ".join(fit(cell, width) for fit, cell, width in zip(pad, row, widths, strict=True))
    for row in rows
  )
  return "\n".join(line.rstrip() for line in lines)
