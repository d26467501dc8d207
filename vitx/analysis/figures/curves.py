"""Draws the learning curves of runs, a mean and a band for each method, beside published curves."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis.comparison import figure_format
from vitx.analysis.figures import style
from vitx.config.errors import ConfigError

TOGETHER = 12  # The most methods in one diagram; more methods get a diagram each.
COLORS = 10  # The number of colors; the lines of further methods are dashed.
WIDE = 4  # The most columns of the legend above the panels.
# The width of the legend, and of the line before a name in it, in characters.
CHARACTERS, KEY = 145, 9
ACROSS = 5  # The most diagrams side by side if each has one method.


@dataclasses.dataclass(frozen=True)
class Curve:
  """The loss and one metric of a run by step.

  Attributes:
    method: The name of the method; the runs of one method are drawn as one line.
    loss: The training loss by step. A value is the mean over the steps since the previous value.
    figure: The metric on *validation*, by step.
    training: The metric on the training batches by step. A value is the mean over the steps since
      the previous value.
    per_epoch: The number of steps in a pass over *train*, which need not be an integer; 0 if
      unknown.
    layers: The error of each layer after an alignment, see `vitx.tasks.alignment`; () for none.
  """

  method: str
  loss: Mapping[int, float]
  figure: Mapping[int, float]
  training: Mapping[int, float] = dataclasses.field(default_factory=dict)
  per_epoch: float = 0.0
  layers: Sequence[float] = ()


Methods = Mapping[str, Sequence[Curve]]  # The runs of each method.
Published = Mapping[str, Mapping[float, float]]  # The values by method and epoch.


@dataclasses.dataclass(frozen=True)
class RunCurves:
  """The learning curves of runs, for one picture.

  Attributes:
    curves: The curves of the runs.
    figure: The name of the metric, such as "top1".
    name: The name of the file, without its suffix.
    published: The training metric printed in the source, by method and epoch.
  """

  curves: Sequence[Curve]
  figure: str
  name: str = "curves"
  published: Published = dataclasses.field(default_factory=dict)


def draw(runs: RunCurves, out: Path) -> list[Path]:
  """Draws the learning curves of runs, see `plot_curves`."""
  return [style.save(plot_curves(runs.curves, runs.figure, runs.published), out, runs.name)]


def plot_curves(curves: Sequence[Curve], figure: str, published: Published | None = None) -> Any:
  """Returns a figure of the curves of runs by step, mean ± standard deviation of each method.

  Up to twelve methods share their panels: one of the training loss and one of the validation
  metric. With more methods, each method has its own panel, with the other methods in gray behind
  it. Such a panel shows one quantity: the validation metric or, with `published`, the training
  metric.

  Args:
    curves: The curves of the runs.
    figure: The name of the metric, such as "top1".
    published: The training metric printed in the source, by method and epoch. The printed values
      are crosses beside the training metric of the runs, for which shared panels get a third one.
  """
  if not any(curve.figure for curve in curves):
    raise ConfigError("curves: no run has been validated; train until a validation.")
  methods: dict[str, list[Curve]] = {}
  for curve in curves:
    methods.setdefault(curve.method, []).append(curve)
  several = len(curves) > len(methods)
  note = "mean and standard deviation over the runs of a method" if several else "one run each"
  note += "; × published" if published else ""
  plot = _plot_by_method if len(methods) > TOGETHER else _plot_together
  return plot(methods, figure, note, published or {})


def _plot_together(methods: Methods, figure: str, note: str, published: Published) -> Any:
  """Returns a figure with a panel for each quantity; each panel has a line for each method."""
  labels = _label(methods)
  fitting = CHARACTERS // (KEY + max(map(len, labels.values())))
  columns = max(1, min(WIDE, len(methods), fitting))
  height = 2.3 + 0.13 * -(-len(methods) // columns)
  canvas, panels = style.make_panels(1, 3 if published else 2, style.PAGE, height, note)
  left, *between, right = panels[0]
  words, scale, _ = figure_format(figure)
  draw_lines(left, {method: [x.loss for x in curves] for method, curves in methods.items()})
  draw_lines(
    right, {method: [x.figure for x in curves] for method, curves in methods.items()}, scale
  )
  style.name_axes(left, "step", "training loss")
  style.name_axes(right, "step", f"validation {words}")
  for axes in between:
    training = {method: [x.training for x in curves] for method, curves in methods.items()}
    draw_lines(axes, training, scale)
    for number, (method, curves) in enumerate(methods.items()):
      _draw_published(axes, published.get(method, {}), curves[0].per_epoch, f"C{number % COLORS}")
    style.name_axes(axes, "step", f"training {words}")
  above = {"loc": "outside upper center", "ncols": columns, "title": "method (runs)"}
  style.add_legend(canvas, right, **above, title_fontsize=style.SMALL)
  return canvas


def _plot_by_method(methods: Methods, figure: str, note: str, published: Published) -> Any:
  """Returns a figure with a panel for each method; all panels share their axes."""
  words, scale, _ = figure_format(figure)
  kind = "training" if published else "validation"
  values = {
    method: [curve.training if published else curve.figure for curve in curves]
    for method, curves in methods.items()
  }
  averages = [average(curves) for curves in values.values()]
  titles = [*_label(methods).values()]
  across = max(1, min(ACROSS, CHARACTERS // max(map(len, titles))))
  rows = -(-len(methods) // across)
  note = f"{kind} {words} by step, {note}; gray: the other methods; in brackets: runs"
  canvas, panels = style.make_panels(rows, across, style.PAGE, 1.1 * rows, note)
  for axes in panels.flat[len(methods) :]:
    axes.remove()
  for number, (method, axes) in enumerate(zip(methods, panels.flat, strict=False)):
    if number:
      axes.sharex(panels[0, 0])
      axes.sharey(panels[0, 0])
    is_lowest = number + across >= len(methods)
    axes.tick_params(labelbottom=is_lowest, labelleft=number % across == 0)
    for steps, mean, _ in averages:
      axes.plot(steps, scale * mean, linewidth=0.5, color="0.8")
    _draw_band(axes, values[method], scale, {"color": "C0"})
    _draw_published(axes, published.get(method, {}), methods[method][0].per_epoch, "C1")
    axes.set_title(titles[number], fontsize=style.SMALL, pad=2)
  return canvas


def average(values: Sequence[Mapping[int, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Averages curves at the steps at which all of them have values.

  Curves without any value are ignored.

  Returns:
    The steps, the means and the standard deviations.
  """
  values = [curve for curve in values if curve] or values
  steps = sorted(set.intersection(*(set(curve) for curve in values)))
  table = np.array([[curve[step] for step in steps] for curve in values]).reshape(len(values), -1)
  deviation = table.std(0, ddof=1) if len(values) > 1 else np.zeros(len(steps))
  return np.array(steps), table.mean(0), deviation


def draw_lines(
  axes: Any, values: Mapping[str, Sequence[Mapping[int, float]]], scale: float = 1.0
) -> None:
  """Draws the mean and the standard deviation of the runs of each method, as a line with a band."""
  labels = _label(values)
  for number, (method, runs) in enumerate(values.items()):
    line = {"color": f"C{number % COLORS}", "linestyle": "-" if number < COLORS else "--"}
    _draw_band(axes, runs, scale, {**line, "label": labels[method]})


def _label(methods: Mapping[str, Sequence[Any]]) -> dict[str, str]:
  """Returns the name of each method with the number of its runs."""
  return {method: f"{method} ({len(runs)})" for method, runs in methods.items()}


def _draw_band(
  axes: Any, values: Sequence[Mapping[int, float]], scale: float, line: Mapping[str, Any]
) -> None:
  steps, mean, deviation = average(values)
  mean, deviation = mean * scale, deviation * scale
  marker = "." if len(steps) < 30 else None
  axes.plot(steps, mean, marker=marker, linewidth=1, markersize=3, **line)
  axes.fill_between(
    steps, mean - deviation, mean + deviation, color=line["color"], alpha=0.15, linewidth=0
  )


def _draw_published(axes: Any, values: Mapping[float, float], per_epoch: float, color: str) -> None:
  """Draws published values as crosses at the steps where their epochs end, up to the last step."""
  last = axes.dataLim.x1
  placed = {epoch * per_epoch: value for epoch, value in values.items()}
  steps = [step for step in placed if 0 < step < last + 1]  # Epochs need not end at whole steps.
  axes.plot(steps, [placed[step] for step in steps], "x", color=color, markersize=4)
