"""Plots accuracy against training memory, by method (Jeevan and Sethi, Figure 4)."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis import csv_files
from vitx.analysis.comparison import figure_format
from vitx.analysis.figures import style
from vitx.config.errors import ConfigError

PREFIX = "test_"
TOLERANCE = 0.02  # The relative tolerance of FLOPs.


def read_results(path: str | Path, figure: str) -> dict[str, tuple[float, ...]]:
  """Reads the test metric of every finished run from a CSV file, and returns it by method.

  Args:
    path: The CSV file that `vitx sweep` or `vitx reproduce` wrote.
    figure: The name of the metric, such as "top1".

  Raises:
    ConfigError: The file or the column does not exist, or no run has finished.
  """
  column = f"{PREFIX}{figure}"
  rows = _read(path)
  if not rows or not {"method", column} <= rows[0].keys():
    raise ConfigError(
      f"results={str(path)!r} has no columns 'method' and {column!r}; give the CSV file that vitx"
      " sweep or vitx reproduce wrote."
    )
  found: dict[str, tuple[float, ...]] = {}
  for row in rows:
    if row[column]:
      value = _number(row[column], column, path)
      found[row["method"]] = (*found.get(row["method"], ()), value)
  if not found:
    raise ConfigError(f"results={str(path)!r} has no finished run; give a file with one.")
  return found


def read_costs(path: str | Path) -> dict[str, float]:
  """Returns the FLOPs of a training step by method, or {} if the file lacks them.

  Args:
    path: The CSV file, see `read_results`.
  """
  counted = (row for row in _read(path) if row.get("flops"))
  return {
    row["method"]: _number(row["flops"], "flops", path, 0) / _number(row["steps"], "steps", path, 0)
    for row in counted
  }


def check_cost(method: str, flops: int, run_flops: float, config: str) -> None:
  """Checks that a config's training step takes as many FLOPs as a step of the drawn runs.

  Different FLOPs would mean that the memory of one network is shown beside the accuracy of another.

  Args:
    method: The name of the method, for the error.
    flops: The FLOPs of a training step of the config.
    run_flops: The FLOPs of a training step of the runs.
    config: The config file and overrides that the user named, for the error.

  Raises:
    ConfigError: The FLOPs differ by more than `TOLERANCE`, which allows for versions of vitx that
      count differently.
  """
  if abs(run_flops - flops) > TOLERANCE * run_flops:
    raise ConfigError(
      f"config={config!r}: a training step of {method} takes {flops / 1e9:,.4g} GFLOP, but"
      f" {run_flops / 1e9:,.4g} in the runs; give the overrides that the runs had, as in"
      " FILE:field=value."
    )


def _number(text: str, column: str, path: str | Path, above: float = -math.inf) -> float:
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not above < value < math.inf:
    kind = "positive" if above == 0 else "finite"
    raise ConfigError(
      f"results={str(path)!r} is damaged: {text!r} in the column {column!r} is not a {kind}"
      " number; write the file again with vitx sweep or vitx reproduce."
    )
  return value


def _read(path: str | Path) -> list[dict[str, str]]:
  try:
    return csv_files.read(path)
  except (OSError, UnicodeDecodeError, csv.Error) as error:
    raise ConfigError(f"results={str(path)!r} cannot be read: {error}") from error


def draw_memory(
  results: Mapping[str, tuple[float, ...]],
  gigabytes: Mapping[str, float],
  figure: str,
  note: str,
  out: Path,
  name: str,
) -> list[Path]:
  """Plots a metric of each method of a sweep against the memory of a training step.

  Args:
    results: The results from `read_results`.
    gigabytes: The memory by method in GB.
    figure: The name of the metric in the results, such as "top1".
    note: A description of the runs and of the memory's measurement, for the caption.
    out: The folder of the files.
    name: The name of the files, without their suffix.
  """
  rows = [
    {"method": method, "runs": len(values), "gigabytes": gigabytes[method]}
    | {f"{PREFIX}{figure}": float(np.mean(values))}
    for method, values in results.items()
  ]
  canvas = plot_memory(results, gigabytes, figure, note)
  return style.save_both(canvas, out, name, rows)


def plot_memory(
  results: Mapping[str, tuple[float, ...]], gigabytes: Mapping[str, float], figure: str, note: str
) -> Any:
  """Returns the figure that `draw_memory` saves: mean and standard deviation of each method."""
  words, scale, _ = figure_format(figure)
  height = max(2.6, 0.12 * (len(results) + 6))  # The legend has a line for each method.
  canvas, panels = style.make_panels(1, 1, style.COLUMN * 1.3, height, note)
  axes = panels[0, 0]
  for number, (method, found) in enumerate(results.items()):
    values = np.array(found) * scale
    spread = values.std(ddof=1) if len(values) > 1 else None
    marker = "osD^v<>p"[number // 10 % 8]
    given: dict[str, Any] = {"fmt": marker, "ms": 4, "elinewidth": 0.8, "capsize": 2}
    given |= {"color": f"C{number % 10}", "label": f"{method} ({len(values)})"}
    axes.errorbar(gigabytes[method], values.mean(), yerr=spread, **given)
  style.name_axes(axes, "memory of a training step (GB)", f"test {words}")
  beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
  axes.legend(
    **beside, fontsize=style.SMALL, frameon=False, title="method (runs)", title_fontsize=style.SMALL
  )
  return canvas
