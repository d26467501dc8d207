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


def format_figure(value: float, digits: int | None = None, sign: str = "") -> str:
  """Formats a metric or another number of a table.

  Args:
    value: The value.
    digits: The number of decimals. None stands for four, or for three significant digits of a value
      below 0.01, such as 3.21e-05, of which four decimals would show less.
    sign: "+" to show the sign of a positive value.
  """
  if digits is None and 0 < abs(value) < 0.01:
    return f"{value:{sign}.3g}"
  return f"{value:{sign}.{4 if digits is None else digits}f}"
