"""Plots accuracy against training memory, by method (Jeevan and Sethi, Figure 4)."""

import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis.comparison import figure_format
from vitx.analysis.figures import style
from vitx.config.errors import ConfigError

PREFIX = "test_"
TOLERANCE = 0.02  # The relative tolerance of FLOPs.


@dataclasses.dataclass(frozen=True)
class SweepResults:
  """The results of a sweep's methods, and their memory.

  Attributes:
    values: The metric of every finished run by method, see `read_results`.
    gigabytes: The memory of a training step by method, in GB.
    figure: The name of the metric, such as "top1".
    note: A description of the runs and of the memory's measurement, for the caption.
    name: The name of the files, without their suffix.
  """

  values: Mapping[str, tuple[float, ...]]
  gigabytes: Mapping[str, float]
  figure: str
  note: str = ""
  name: str = "memory"


def read_results(
  path: str | Path, figure: str
) -> tuple[dict[str, tuple[float, ...]], dict[str, float]]:
  """Reads the results of the finished runs from a CSV file.

  Args:
    path: The CSV file that `vitx sweep` or `vitx reproduce` wrote.
    figure: The name of the metric, such as "top1".

  Returns:
    The test metric of every finished run, and the FLOPs of a training step, by method. A method
    whose FLOPs the file lacks is absent from the second dict.
  """
  values: dict[str, tuple[float, ...]] = {}
  flops: dict[str, float] = {}
  with open(path, newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file, restval=""))
  for row in rows:
    try:
      method, text = row["method"], row[f"{PREFIX}{figure}"]
    except KeyError as error:
      raise ConfigError(f"results={str(path)!r} has no column {error}.") from error
    if text:
      values[method] = (*values.get(method, ()), float(text))
    if row.get("flops"):
      flops[method] = float(row["flops"]) / float(row["steps"])
  return values, flops


def check_cost(method: str, flops: int, run_flops: float) -> None:
  """Checks that a config's training step takes as many FLOPs as a step of the drawn runs.

  Different FLOPs would mean that the memory of one network is shown beside the accuracy of another.

  Args:
    method: The name of the method, for the error.
    flops: The FLOPs of a training step of the config.
    run_flops: The FLOPs of a training step of the runs.
  """
  if abs(run_flops - flops) > TOLERANCE * run_flops:
    raise ConfigError(
      f"config: a training step of {method} takes {flops / 1e9:,.4g} GFLOP, but"
      f" {run_flops / 1e9:,.4g} in the runs; give the overrides that the runs had."
    )


def draw(sweep: SweepResults, out: Path) -> list[Path]:
  """Plots a metric of each method of a sweep against the memory of a training step."""
  rows = [
    {"method": method, "runs": len(values), "gigabytes": sweep.gigabytes[method]}
    | {f"{PREFIX}{sweep.figure}": float(np.mean(values))}
    for method, values in sweep.values.items()
  ]
  return style.save_both(plot_memory(sweep), out, sweep.name, rows)


def plot_memory(sweep: SweepResults) -> Any:
  """Returns a figure of the mean and standard deviation of each method over its memory."""
  words, scale, _ = figure_format(sweep.figure)
  height = max(2.6, 0.12 * (len(sweep.values) + 6))  # The legend has a line for each method.
  canvas, panels = style.make_panels(1, 1, style.COLUMN * 1.3, height, sweep.note)
  axes = panels[0, 0]
  for number, (method, figures) in enumerate(sweep.values.items()):
    values = np.array(figures) * scale
    spread = values.std(ddof=1) if len(values) > 1 else None
    marker = "osD^v<>p"[number // 10 % 8]
    looks: dict[str, Any] = {"fmt": marker, "ms": 4, "elinewidth": 0.8, "capsize": 2}
    looks |= {"color": f"C{number % 10}", "label": f"{method} ({len(values)})"}
    axes.errorbar(sweep.gigabytes[method], values.mean(), yerr=spread, **looks)
  style.name_axes(axes, "memory of a training step (GB)", f"test {words}")
  beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
  axes.legend(
    **beside, fontsize=style.SMALL, frameon=False, title="method (runs)", title_fontsize=style.SMALL
  )
  return canvas
