"""Reports of measured mixers: ratios to dense softmax, as text, as CSV, and as a plot over N.

A row is a `MixerCost`: what one mixer costs in one implementation at one number of tokens.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

from vitx.analysis import csv_files
from vitx.analysis.figures.style import make_canvas
from vitx.analysis.tables import lay_out
from vitx.benchmark.mixers import BASELINE, MixerCost, Setting

QUANTITIES = ("time", "memory", "flops")
BASELINES = ("masked", "kernelized")
# The columns of ratios: each quantity against dense softmax in both implementations.
NAMES = ("time masked", "kernelized", "memory masked", "kernelized", "FLOPs masked", "kernelized")


def is_gpu() -> bool:
  """Returns whether the device is a GPU.

  Absolute times on a CPU with shared cores mean little, so the reports prefer ratios there.
  """
  return jax.default_backend() == "gpu"


def read_quantity(row: MixerCost, name: str) -> float | None:
  """Returns a measured quantity of a row, or `None` if the row was skipped.

  Args:
    row: The row.
    name: The quantity: "time" in seconds, "memory" in temporary bytes, or "flops".
  """
  if name == "time":
    return row.times.seconds if row.times else None
  return row.temporary_bytes if name == "memory" else row.flops


def find_baseline(rows: Iterable[MixerCost], tokens: int, implementation: str) -> MixerCost | None:
  """Returns the row of dense softmax at N tokens in one implementation, or `None` without one."""
  baseline = (tokens, BASELINE, implementation)
  return next((r for r in rows if (r.tokens, r.mixer, r.implementation) == baseline), None)


def compute_ratio(
  rows: Iterable[MixerCost], row: MixerCost, name: str, implementation: str
) -> float | None:
  """Returns softmax's quantity over the row's at its N, or `None` if one of the two was skipped."""
  base = find_baseline(rows, row.tokens, implementation)
  mine, other = read_quantity(row, name), None if base is None else read_quantity(base, name)
  return None if mine is None or other is None else other / max(mine, 1e-12)


def find_crossover(rows: Sequence[MixerCost], mixer: str, against: str) -> int | None:
  """Returns the smallest measured N from which on a mixer's kernelized path is the faster one.

  Args:
    rows: The rows of one run.
    mixer: The name of the mixer.
    against: The path to compare with: "kernelized" for the kernelized path of dense softmax, or
      "masked" for the mixer's own masked path.

  Returns:
    The number N, or `None` if no N has both times, or if the mixer's kernelized path is not faster
    at the largest N that has both.
  """
  crossover = None
  for n in sorted({row.tokens for row in rows}, reverse=True):
    paths = {row.implementation: row for row in rows if (row.tokens, row.mixer) == (n, mixer)}
    mine = paths.get("kernelized") or paths.get("auto")
    other = paths.get("masked") if against == "masked" else find_baseline(rows, n, against)
    if not (mine and other and mine.times and other.times):
      continue
    if mine.times.seconds >= other.times.seconds:
      return crossover
    crossover = n
  return crossover


def format_rows(rows: Sequence[MixerCost], setting: Setting) -> str:
  """Returns the rows as text, with a block for each N."""
  lines = [
    "Forward + backward of the whole module by input and parameters, projections included.",
    f"B={setting.batch} H={setting.heads} D={setting.head_dim} {setting.dtype},"
    f" {jax.devices()[0].device_kind}. Each ratio says how many times less a row takes than dense",
    "softmax, masked or kernelized; MB is temporary memory; * marks what auto picks.",
  ]
  for n in dict.fromkeys(row.tokens for row in rows):
    block = [row for row in rows if row.tokens == n]
    head = [f"N = {n}", "", "", *NAMES, "MB", *["ms"] * is_gpu(), ""]
    table = [head, *(_list_cells(rows, row) for row in block)]
    lines += ["", lay_out(table, right=range(3, len(head) - 1)), *_list_undersampled(block)]
  return "\n".join([*lines, "", _crossovers(rows)])


def _list_cells(rows: Sequence[MixerCost], row: MixerCost) -> list[str]:
  ratios = [format_ratio(compute_ratio(rows, row, q, b)) for q in QUANTITIES for b in BASELINES]
  megabytes = "" if row.temporary_bytes is None else f"{row.temporary_bytes / 1e6:.1f}"
  milliseconds = f"{row.times.seconds * 1e3:.2f}" if row.times else ""
  mark = "*" if row.picked else ""
  figures = [*ratios, megabytes, *[milliseconds] * is_gpu()]
  return [row.mixer, row.implementation, mark, *figures, row.note]


def _list_undersampled(rows: Sequence[MixerCost]) -> list[str]:
  """Returns a line about the programs with fewer samples than others, or [] if there are none."""
  most = max((row.times.samples for row in rows if row.times), default=0)
  cut = [
    f"{row.mixer} {row.implementation} ({row.times.samples})"
    for row in rows
    if row.times and row.times.samples < most
  ]
  return [f"timed fewer than {most} times because of --seconds: {', '.join(cut)}"] if cut else []


def format_ratio(value: float | None) -> str:
  """Returns a ratio with three digits, or "-" if it is not known."""
  if value is None:
    return "-"
  return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _crossovers(rows: Sequence[MixerCost]) -> str:
  table = [["N from which kernelized is faster than", "dense kernelized", "its own masked"]]
  for mixer in dict.fromkeys(row.mixer for row in rows):
    crossovers = [find_crossover(rows, mixer, against) for against in ("kernelized", "masked")]
    table.append([mixer, *("-" if n is None else str(n) for n in crossovers)])
  return lay_out(table, right=(1, 2))


def write_csv(path: str | Path, rows: Sequence[MixerCost]) -> None:
  """Writes a CSV file with a line for each row.

  Skipped values are empty. The milliseconds are also empty if the device is not a GPU.
  """
  csv_files.write_records(path, [_record(rows, row) for row in rows])


def _record(rows: Sequence[MixerCost], row: MixerCost) -> dict[str, Any]:
  head = {name: getattr(row, name) for name in ("tokens", "mixer", "implementation", "picked")}
  ratios = {(q, b): compute_ratio(rows, row, q, b) for q in QUANTITIES for b in BASELINES}
  return {
    **head,
    **{f"{q}_times_less_than_{b}": ratio for (q, b), ratio in ratios.items()},
    "temporary_bytes": row.temporary_bytes,
    "flops": row.flops,
    "samples": row.times.samples if row.times else 0,
    "milliseconds": row.times.seconds * 1e3 if row.times and is_gpu() else None,
    "note": row.note,
  }


def write_plot(path: str | Path, rows: Sequence[MixerCost]) -> None:
  """Draws two panels over N: time and temporary memory of each kernelized path.

  A circle marks the N from which a mixer is faster than dense softmax's kernelized path; a triangle
  marks the N from which it is faster than its own masked path. Time is in ms on a GPU, and
  otherwise relative to dense kernelized softmax at the smallest N.

  Args:
    path: The path of a file with a suffix that matplotlib supports, such as .png.
    rows: The rows of one run.
  """
  figure = make_canvas(14, 7)
  left, right = figure.subplots(1, 2)
  times = _panel(left, rows, "time", *_time_unit(rows))
  _mark_crossovers(left, rows, times)
  _panel(right, rows, "memory", 1e6, "temporary memory (MB)")
  left.scatter([], [], marker="o", c="k", label="faster than dense kernelized from here on")
  left.scatter([], [], marker="^", c="k", label="faster than its own masked path from here on")
  handles, labels = left.get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside right upper", fontsize="small")
  figure.savefig(path, dpi=120)


def _time_unit(rows: Sequence[MixerCost]) -> tuple[float, str]:
  """Returns the unit of time of the plot in seconds, and the label of its axis."""
  smallest = min(row.tokens for row in rows)
  first = find_baseline(rows, smallest, "kernelized")
  if is_gpu() or first is None or first.times is None:
    return 1e-3, "time (ms)"
  return first.times.seconds, f"time / that of dense kernelized softmax at N = {smallest}"


def _panel(axes, rows: Sequence[MixerCost], quantity: str, unit: float, name: str) -> dict:
  """Draws a quantity over N; returns each mixer's color and its kernelized values by N."""
  drawn = {}
  mixers = dict.fromkeys(row.mixer for row in rows)
  for number, mixer in enumerate(mixers):
    color = "k" if mixer == BASELINE else f"C{number % 10}"
    style = ("-", "--", ":")[number // 10 % 3]
    values = {row: read_quantity(row, quantity) for row in rows if row.mixer == mixer}
    known = [(row, value / unit) for row, value in values.items() if value is not None]
    kernelized = {row.tokens: y for row, y in known if row.implementation != "masked"}
    width = 3 if mixer == BASELINE else 1.2
    if kernelized:
      x, y = list(kernelized), list(kernelized.values())
      axes.plot(x, y, style, marker=".", c=color, lw=width, label=mixer)
    drawn[mixer] = color, kernelized
    if mixer == BASELINE:
      masked = {row.tokens: y for row, y in known if row.implementation == "masked"}
      axes.plot(list(masked), list(masked.values()), ":", c="k", lw=3, label=f"{mixer}, masked")
  axes.set(xscale="log", yscale="log", xlabel="tokens N", ylabel=name)
  axes.set_xticks(sorted({row.tokens for row in rows}))
  axes.get_xaxis().set_major_formatter("{x:.0f}")
  axes.minorticks_off()
  axes.grid(alpha=0.3)
  return drawn


def _mark_crossovers(axes, rows: Sequence[MixerCost], drawn: dict) -> None:
  for mixer, (color, values) in drawn.items():
    for against, marker, size in (("kernelized", "o", 45), ("masked", "^", 18)):
      n = find_crossover(rows, mixer, against)
      if n in values:
        axes.scatter([n], [values[n]], marker=marker, s=size, c=color)
