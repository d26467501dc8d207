"""The measured rows as ratios, for reading and as CSV."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax

from vitx.analysis import csv_files
from vitx.benchmark.mixers import BASELINE, Row, Setting
from vitx.benchmark.named import Outcome
from vitx.config.errors import ConfigError

QUANTITIES = ("time", "memory", "flops")
BASELINES = ("masked", "kernelized")


def is_gpu() -> bool:
  """Returns whether absolute times mean something: a CPU's cores are shared and noisy."""
  return jax.default_backend() == "gpu"


def read_quantity(row: Row, name: str) -> float | None:
  """Returns seconds, temporary bytes or FLOPs of a row; `None` if it was skipped."""
  if name == "time":
    return row.times.seconds if row.times else None
  return row.temporary_bytes if name == "memory" else row.flops


def find_baseline(rows: Iterable[Row], tokens: int, implementation: str) -> Row | None:
  """Returns the row of dense softmax at N tokens in one implementation, `None` without one."""
  wanted = (tokens, BASELINE, implementation)
  return next((r for r in rows if (r.tokens, r.mixer, r.implementation) == wanted), None)


def compute_ratio(rows: Iterable[Row], row: Row, name: str, implementation: str) -> float | None:
  """Returns how many times less than dense softmax a row takes; `None` if either was skipped."""
  base = find_baseline(rows, row.tokens, implementation)
  mine, other = read_quantity(row, name), None if base is None else read_quantity(base, name)
  return None if mine is None or other is None else other / max(mine, 1e-12)


def find_crossover(rows: Sequence[Row], mixer: str, against: str) -> int | None:
  """Returns the smallest measured N from which on a mixer's kernelized path beats another path.

  Args:
    rows: of one run.
    mixer: its name.
    against: "kernelized", dense softmax's kernelized path; or "masked", the mixer's own.

  Returns:
    None if it loses at the largest N that has both, or there is none.
  """
  found = None
  for n in sorted({row.tokens for row in rows}, reverse=True):
    own = {row.implementation: row for row in rows if (row.tokens, row.mixer) == (n, mixer)}
    mine = own.get("kernelized") or own.get("auto")
    other = own.get("masked") if against == "masked" else find_baseline(rows, n, against)
    if not (mine and other and mine.times and other.times):
      continue
    if mine.times.seconds >= other.times.seconds:
      return found
    found = n
  return found


def format_rows(rows: Sequence[Row], setting: Setting) -> str:
  """Formats the rows for reading, a block for each N."""
  lines = [
    "Forward + backward of the whole module by input and parameters, projections included.",
    f"B={setting.batch} H={setting.heads} D={setting.head_dim} {setting.dtype},"
    f" {jax.devices()[0].device_kind}. Each figure says how many times less a row takes than dense",
    "softmax in its masked and in its kernelized implementation; * is what auto picks.",
  ]
  for n in dict.fromkeys(row.tokens for row in rows):
    lines += ["", _heading(n)]
    own = [row for row in rows if row.tokens == n]
    lines += [_line(rows, row) for row in own] + _cut(own)
  lines += ["", *_crossovers(rows)]
  return "\n".join(lines)


def _heading(n: int) -> str:
  first = f"N = {n}"
  groups = f"{first:<34}{'time':^18}{'temporaries':^25}{'FLOPs':^17}"
  names = f"{'':<34}{'masked  kernelized':>18}{'MB  masked  kernel.':>25}{'masked  kernel.':>17}"
  return f"{groups}\n{names}{'       ms' if is_gpu() else ''}"


def _line(rows: Sequence[Row], row: Row) -> str:
  name = f"{row.mixer:<20} {row.implementation:<11}{'*' if row.picked else ' '} "
  if row.note:
    return f"{name}{row.note}"
  cells = [_times(compute_ratio(rows, row, q, b)) for q in QUANTITIES for b in BASELINES]
  megabytes = f"{'-' if row.temporary_bytes is None else f'{row.temporary_bytes / 1e6:.1f}':>9}"
  text = f"{name}{cells[0]:>8}{cells[1]:>10}{megabytes}{cells[2]:>8}{cells[3]:>8}"
  text += f"{cells[4]:>9}{cells[5]:>8}"
  if is_gpu() and row.times:
    text += f"{row.times.seconds * 1e3:>9.2f}"
  return text


def _cut(rows: Sequence[Row]) -> list[str]:
  """Says which programs were sampled less often than others, for want of time."""
  most = max((row.times.samples for row in rows if row.times), default=0)
  cut = [
    f"{row.mixer} {row.implementation} ({row.times.samples})"
    for row in rows
    if row.times and row.times.samples < most
  ]
  return [f"timed fewer than {most} times, to keep to --seconds: {', '.join(cut)}"] if cut else []


def _times(value: float | None) -> str:
  if value is None:
    return "-"
  return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _crossovers(rows: Sequence[Row]) -> list[str]:
  lines = [
    f"{'kernelized faster from N on than':<34}{'dense kernelized':>18}{'its own masked':>18}"
  ]
  for mixer in dict.fromkeys(row.mixer for row in rows):
    dense = "" if mixer == BASELINE else find_crossover(rows, mixer, "kernelized") or "-"
    lines.append(f"{mixer:<34}{dense:>18}{find_crossover(rows, mixer, 'masked') or '-':>18}")
  return lines


def format_named(outcomes: Sequence[Outcome]) -> str:
  """Formats the named cases with what was asked and what was found."""
  lines = ["Named cases, on queries, keys and values alone; forward + backward, float32."]
  for case in dict.fromkeys(outcome.case for outcome in outcomes):
    lines.append(case)
    lines += [_outcome_line(outcome) for outcome in outcomes if outcome.case == case]
  return "\n".join(lines)


def _outcome_line(outcome: Outcome) -> str:
  figure = outcome.figure
  what = "faster than" if figure.quantity == "time" else "less temporaries than"
  text = f"  {figure.kernel}: {what} {figure.other}"
  if outcome.note:
    return f"{text:<72} {outcome.note}"
  found = "  ".join(_times(ratio) for ratio in outcome.found)
  if figure.at_least is None:
    return f"{text:<72} {found}"
  met = f"met in {outcome.met} of {len(outcome.found)}"
  return f"{text:<72} >= {figure.at_least:<5g} {found}  {met}"


COLUMNS = (
  "tokens",
  "mixer",
  "implementation",
  "picked",
  *(f"{q}_times_less_than_{b}" for q in QUANTITIES for b in BASELINES),
  "temporary_bytes",
  "flops",
  "samples",
  "milliseconds",
  "note",
)


def write_csv(path: str | Path, rows: Sequence[Row]) -> None:
  """Writes `COLUMNS`; what was skipped is empty, and so are milliseconds on a CPU.

  Raises:
    ConfigError: the file cannot be written.
  """
  try:
    csv_files.write(path, [COLUMNS, *(_cells(rows, row) for row in rows)])
  except OSError as error:
    raise ConfigError(f"csv={str(path)!r} cannot be written: {error}") from error


def _cells(rows: Sequence[Row], row: Row) -> list:
  ratios = [compute_ratio(rows, row, q, b) for q in QUANTITIES for b in BASELINES]
  milliseconds = row.times.seconds * 1e3 if row.times and is_gpu() else None
  return [
    *dataclasses.astuple(row)[:4],
    *ratios,
    row.temporary_bytes,
    row.flops,
    row.times.samples if row.times else 0,
    milliseconds,
    row.note,
  ]
