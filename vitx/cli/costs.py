"""What the rows of a config cost: `vitx benchmark models --config`.

The figures are those of Nauen et al. (Which Transformer to Favor, WACV 2025).
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from vitx.analysis import csv_files, markdown
from vitx.analysis.figures import pareto
from vitx.analysis.figures.subject import make_canvas
from vitx.checkpoints.outputs import write_json
from vitx.cli import row_costs
from vitx.cli.row_costs import BATCH, COUNTED, LABELS, SIZE, SUMMARIZED, TIMED, Row
from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.loader import join_text, load_config, open_config, split_text
from vitx.sweeps.points import find_published, find_rows
from vitx.training.trial import complete_config

PUBLISHED = "published_"
FRONT = "front"

TOLD = (
  "gflops_products: matrix products, convolutions and Fourier transforms of one example, a"
  " multiply-add counted as two; gflops: elementwise arithmetic and reductions too, an exponential"
  f" counted as one. MB are 10^6 bytes; training at batch {BATCH}, compiled for {{device}}, never"
  " run: train_optimizer_mb is all that a step keeps beside the parameters, train_activations_mb"
  " all that it needs besides, gradients among them."
)
TOLD_SIZE = (
  "parameters_torchsummary leaves out those that torchsummary does not see, as the source's table"
  " does; size_mb: what it prints of the source's PyTorch network for one image, in 2^20 bytes, see"
  " vitx.analysis.torchsummary. It is no size of a file and no peak of memory."
)
TOLD_TIMED = (
  "train_per_s and inference_per_s: examples a second on one device at the best batch, the rows in"
  f" turns. train_peak_mb: the most that the device held in steps of {BATCH}, in a process of its"
  " own, where the device tells."
)


def run(options: argparse.Namespace, say: Callable[[str], None]) -> None:
  """Prints what each row of a config file costs, and writes what is asked for.

  Args:
    options: of `vitx benchmark models`.
    say: is told of progress.

  Raises:
    ConfigError: an unknown row or column, a file that cannot be written; nothing was compiled.
    MissingExtraError: a plot is asked for, and matplotlib is not installed.
  """
  texts = find_texts(options.config, options.rows)
  quoted = find_published(split_text(options.config)[0])
  published = {name: quoted.get(name, {}) for name in texts}
  columns = _columns(published, options.time)
  axes = _check(options, columns)
  configs = {name: complete_config(load_config(text)) for name, text in texts.items()}
  # In processes of their own, and first: this one would take the device's memory.
  peaks = row_costs.measure_peaks(texts, say) if options.time else {}
  rows: dict[str, Row] = {}
  for name, config in configs.items():
    say(f"{name}: counted and compiled")
    rows[name] = row_costs.count(config) | peaks.get(name, {})
    if SIZE in published[name]:
      rows[name] |= row_costs.count_size(config)
    rows[name] |= {f"{PUBLISHED}{key}": _last(x) for key, x in published[name].items()}
  if options.time:
    effort = {"repeats": options.repeats, "seconds": options.seconds}
    for name, rates in row_costs.measure_rates(configs, say=say, **effort).items():
      rows[name] |= rates
  if axes:
    front = pareto.find_front(_points(rows, axes), _more(axes))
    rows = {name: row | {FRONT: name in front} for name, row in rows.items()}
  _show(rows, [*columns, *[FRONT] * bool(axes)], options)
  if axes:
    print(f"\n{_draw(rows, axes, options)}")


def find_texts(config: str, rows: Sequence[str] | None) -> dict[str, str]:
  """Returns the text of a config for each row that is asked for, by the row.

  A config that names its row, or is of a file without rows, is one row.
  """
  path, arg = split_text(config)
  first = arg.split(",")[0]
  if first and "=" not in first:
    if rows:
      raise ConfigError(f"config={config!r} names the row {first!r} already: leave out --rows")
    return {first: config}
  if not rows and (path.endswith(".json") or not open_config(path).get("ROWS")):
    return {Path(path).stem: config}
  overrides = [arg] if arg else []
  return {row: join_text(f"{path}:{row}", overrides) for row in find_rows(path, rows or [])}


def _columns(published: Mapping[str, Mapping[str, Any]], timed: bool) -> list[str]:
  """Returns what there is to tell, a published figure beside ours where there are both."""
  quoted = [key for row in published.values() for key in row]
  found = [*COUNTED, *SUMMARIZED * (SIZE in quoted), *TIMED * timed]
  for key in dict.fromkeys(quoted):
    found.insert(found.index(key) + 1 if key in found else len(found), f"{PUBLISHED}{key}")
  return found


def _check(options: argparse.Namespace, columns: Sequence[str]) -> tuple[str, str] | None:
  """Returns the two columns of the plot, None without one; refuses what cannot be done."""
  if (options.pareto is None) != (options.out is None):
    raise ConfigError("--pareto names two columns, and --out the folder of their plot: give both")
  if options.pareto is None:
    return None
  if len(set(options.pareto)) != 2 or len(options.pareto) != 2:
    given = ",".join(options.pareto)
    raise ConfigError(f"pareto={given!r}: name two columns, such as train_mb,gflops")
  for column in options.pareto:
    if column in TIMED and column not in columns:
      raise ConfigError(f"pareto={column!r} is measured: add --time")
    if column not in columns:
      raise ConfigError(
        f"pareto={column!r} is no column.{nearest(column, columns)} Valid: {listing(columns)}"
      )
  if not Path(options.out).is_dir():
    raise ConfigError(f"out={options.out!r} is no folder; make it first")
  make_canvas(1, 1)  # raises without matplotlib
  return options.pareto[0], options.pareto[1]


def _last(value: Any) -> Any:
  """Returns a published figure; of one by epoch the last."""
  return list(value.values())[-1] if isinstance(value, Mapping) else value


def _points(rows: Mapping[str, Row], axes: tuple[str, str]) -> dict[str, tuple[float, float]]:
  x, y = axes
  return {name: (row[x], row[y]) for name, row in rows.items() if x in row and y in row}


def _more(axes: tuple[str, str]) -> tuple[bool, bool]:
  """Returns whether more is better, of rates and accuracies; of everything else less is."""
  x, y = (column.endswith(("_per_s", "top1", "top5")) for column in axes)
  return x, y


def _show(rows: Mapping[str, Row], columns: Sequence[str], options: argparse.Namespace) -> None:
  """Prints the table without its empty columns, and writes all of it."""
  device = f"one {jax.devices()[0].device_kind} ({jax.default_backend()})"
  if options.csv:
    values = [[name, *map(row.get, columns)] for name, row in rows.items()]
    csv_files.write(options.csv, [["row", *columns], *values])
  if options.json:
    listed = [{"row": name} | row for name, row in rows.items()]
    write_json(options.json, {"device": device, "rows": listed})
  filled = [column for column in columns if any(column in row for row in rows.values())]
  cells = [[name, *(_format(column, row) for column in filled)] for name, row in rows.items()]
  print(markdown.table([["row", *filled], *cells]))
  print(f"\n{TOLD.format(device=device)}")
  for text, when in ((TOLD_SIZE, SIZE in filled), (TOLD_TIMED, options.time)):
    if when:
      print(f"\n{text}")


def _format(column: str, row: Row) -> str:
  """Returns a value with at least four digits; one as it is printed, or a count, with all."""
  value = row.get(column, "")
  if isinstance(value, bool):
    return "yes" if value else ""
  if isinstance(value, str):
    return value
  if isinstance(value, int) or column == SIZE or column.startswith(PUBLISHED):
    return f"{value:,}"
  digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
  return f"{value:,.{digits}f}"


def _draw(rows: Mapping[str, Row], axes: tuple[str, str], options: argparse.Namespace) -> Path:
  points, path = _points(rows, axes), split_text(options.config)[0]
  if not points:
    raise ConfigError(f"pareto={','.join(axes)!r}: no row has both figures here")
  told = f"Rows of {Path(path).name} on one {jax.devices()[0].device_kind}."
  name = f"pareto_{Path(path).stem}_{axes[0]}_{axes[1]}"
  labels = _label(axes[0]), _label(axes[1])
  return pareto.draw_pareto(points, labels, _more(axes), told, Path(options.out), name)


def _label(column: str) -> str:
  """Returns what a picture calls a column."""
  own = column.removeprefix(PUBLISHED)
  return f"{'published ' * (own != column)}{LABELS.get(own, own)}"
