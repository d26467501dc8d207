"""Learning curves of runs, those of one method as mean and band, and a source's beside them."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis.comparison import shown
from vitx.analysis.figures.subject import make_canvas, save
from vitx.errors import ConfigError

STYLES = ("-", "--", ":", "-.")  # for more methods than there are colors
BESIDE = 12  # methods up to which one column of the legend does


@dataclasses.dataclass(frozen=True)
class Curve:
  """What a run wrote while it learned.

  Attributes:
    method: the runs of one method make one line.
    loss: mean training loss since the value before, by step.
    figure: on *validation*, by step.
    training: the same figure of the batches since the value before, by step.
  """

  method: str
  loss: Mapping[int, float]
  figure: Mapping[int, float]
  training: Mapping[int, float] = dataclasses.field(default_factory=dict)


def draw_curves(
  curves: Sequence[Curve],
  figure: str,
  out: Path,
  name: str,
  published: Mapping[str, Mapping[float, float]] | None = None,
) -> list[Path]:
  """The loss and the validation figure of runs by step, each method's mean ± standard deviation.

  Args:
    curves: of the runs.
    figure: what the validation figure is called.
    out: folder of the file.
    name: of the file, without its ending.
    published: a source's figure while it trained, by method and by our step; then the runs' own
      stands in a picture between, and the source's as crosses over it.

  Raises:
    ConfigError: no run has come to a validation.
    MissingExtraError: matplotlib is not installed.
  """
  if not any(curve.figure for curve in curves):
    raise ConfigError("curves: no run has been validated yet; let one train for evaluation.every")
  methods = list(dict.fromkeys(curve.method for curve in curves))
  canvas = make_canvas(13.0 if published else 9.5, 3.6)
  left, *between, right = canvas.subplots(1, 3 if published else 2)
  words, scale, _ = shown(figure)
  for number, method in enumerate(methods):
    own = [curve for curve in curves if curve.method == method]
    style: dict[str, Any] = {"color": f"C{number % 10}", "linestyle": STYLES[number // 10 % 4]}
    name_and_runs = f"{method} ({len(own)})"
    _draw_band(left, [curve.loss for curve in own], 1.0, style, None)
    _draw_band(right, [curve.figure for curve in own], scale, style, name_and_runs)
    for axes in between:
      _draw_band(axes, [curve.training for curve in own], scale, style, None)
      _draw_published(axes, (published or {}).get(method, {}), scale, style["color"])
  left.set(ylabel="training loss")
  right.set(ylabel=f"validation {words}")
  for axes in between:
    axes.set(ylabel=f"training {words}", title="× published")
  for axes in (left, *between, right):
    axes.set(xlabel="step")
    axes.grid(alpha=0.3)
  columns = -(-len(methods) // BESIDE)
  canvas.legend(loc="outside right center", fontsize="small", ncols=columns, title="method (runs)")
  return [save(canvas, out, name, 150)]


def average(values: Sequence[Mapping[int, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns steps, means and standard deviations, at the steps that all runs have come to."""
  steps = sorted(set.intersection(*(set(each) for each in values)))
  table = np.array([[each[step] for step in steps] for each in values]).reshape(len(values), -1)
  deviation = table.std(0, ddof=1) if len(values) > 1 else np.zeros(len(steps))
  return np.array(steps), table.mean(0), deviation


def _draw_band(
  axes: Any, values: Sequence[Mapping[int, float]], scale: float, style: dict, name: str | None
) -> None:
  steps, mean, deviation = average(values)
  mean, deviation = mean * scale, deviation * scale
  marker = "." if len(steps) < 30 else None
  axes.plot(steps, mean, marker=marker, linewidth=1.3, label=name, **style)
  axes.fill_between(steps, mean - deviation, mean + deviation, color=style["color"], alpha=0.15)


def _draw_published(axes: Any, values: Mapping[float, float], scale: float, color: str) -> None:
  """Draws those that lie within the steps of the runs, as crosses."""
  last = axes.dataLim.x1
  steps = [step for step in values if step <= last]
  axes.plot(steps, [scale * values[step] for step in steps], "x", color=color, markersize=7)
