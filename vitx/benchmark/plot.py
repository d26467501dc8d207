"""Time and memory of the kernelized paths against N, as a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path

from vitx.benchmark.mixers import BASELINE, Row
from vitx.benchmark.report import find_baseline, find_crossover, is_gpu, read_quantity
from vitx.config.errors import ConfigError, MissingExtraError


def write_plot(path: str | Path, rows: Sequence[Row]) -> None:
  """Draws two panels over N: time and temporary memory of each kernelized path.

  A circle marks the N from which on a mixer beats dense softmax's kernelized path, a triangle that
  from which on it beats its own masked path. Time is in ms on a GPU, else relative to dense
  kernelized softmax at the smallest N.

  Args:
    path: of a file whose ending matplotlib knows, such as .png.
    rows: of one run.

  Raises:
    MissingExtraError: matplotlib is not installed.
    ConfigError: the file cannot be written.
  """
  figure = import_figure()(figsize=(14, 7), layout="constrained")
  left, right = figure.subplots(1, 2)
  unit, unit_name = _time_unit(rows)
  times = _panel(left, rows, lambda row: _scale(read_quantity(row, "time"), unit), unit_name)
  _mark_crossovers(left, rows, times)
  _panel(right, rows, lambda row: _scale(row.temporary_bytes, 1e6), "temporary memory (MB)")
  left.scatter([], [], marker="o", c="k", label="faster than dense kernelized from here on")
  left.scatter([], [], marker="^", c="k", label="faster than its own masked path from here on")
  handles, labels = left.get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside right upper", fontsize="small")
  try:
    figure.savefig(path, dpi=120)
  except (OSError, ValueError) as error:
    raise ConfigError(f"plot={str(path)!r} cannot be written: {error}") from error


def import_figure() -> Callable:
  """Returns matplotlib's class of figures. Raises MissingExtraError without matplotlib."""
  try:
    from matplotlib.figure import Figure  # no pyplot: no window, no global state
  except ImportError as error:
    raise MissingExtraError("the plot", "plot") from error
  return Figure


def _time_unit(rows: Sequence[Row]) -> tuple[float, str]:
  """Returns the seconds of one unit, and its name."""
  smallest = min(row.tokens for row in rows)
  first = find_baseline(rows, smallest, "kernelized")
  if is_gpu() or first is None or first.times is None:
    return 1e-3, "time (ms)"
  return first.times.seconds, f"time / that of dense kernelized softmax at N = {smallest}"


def _scale(value: float | None, unit: float) -> float | None:
  return None if value is None else value / unit


def _panel(axes, rows: Sequence[Row], value: Callable[[Row], float | None], name: str) -> dict:
  """Draws the lines; returns each kernelized path's color and its values by N."""
  drawn = {}
  mixers = dict.fromkeys(row.mixer for row in rows)
  for number, mixer in enumerate(mixers):
    color = "k" if mixer == BASELINE else f"C{number % 10}"
    style = ("-", "--", ":")[number // 10 % 3]
    own = [row for row in rows if row.mixer == mixer and value(row) is not None]
    kernelized = {row.tokens: value(row) for row in own if row.implementation != "masked"}
    width = 3 if mixer == BASELINE else 1.2
    if kernelized:
      axes.plot(*_line(kernelized), style, marker=".", c=color, lw=width, label=mixer)
    drawn[mixer] = color, kernelized
    if mixer == BASELINE:
      masked = {row.tokens: value(row) for row in own if row.implementation == "masked"}
      axes.plot(*_line(masked), ":", c="k", lw=3, label=f"{mixer}, masked")
  axes.set(xscale="log", yscale="log", xlabel="tokens N", ylabel=name)
  axes.set_xticks(sorted({row.tokens for row in rows}))
  axes.get_xaxis().set_major_formatter("{x:.0f}")
  axes.minorticks_off()
  axes.grid(alpha=0.3)
  return drawn


def _mark_crossovers(axes, rows: Sequence[Row], drawn: dict) -> None:
  for mixer, (color, values) in drawn.items():
    for against, marker, size in (("kernelized", "o", 45), ("masked", "^", 18)):
      n = find_crossover(rows, mixer, against)
      if n in values:
        axes.scatter([n], [values[n]], marker=marker, s=size, c=color)


def _line(points: dict) -> tuple[list, list]:
  return list(points), list(points.values())
