"""Draws how well the layers of a network with another attention follow those of the old one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitx.analysis.figures import style
from vitx.analysis.figures.curves import Curve, RunCurves, draw_lines


def draw(runs: RunCurves, out: Path) -> list[Path]:
  """Draws the error of each layer after an alignment, see `plot_alignment`."""
  return [style.save(plot_alignment(runs.curves), out, runs.name.replace("curves", "alignment"))]


def plot_alignment(curves: Sequence[Curve]) -> Any:
  """Returns a figure of the error of each layer, mean ± standard deviation of each method.

  Args:
    curves: The curves of the runs, of which `layers` is drawn. Runs without it are left out.
  """
  methods: dict[str, list[dict[int, float]]] = {}
  for curve in curves:
    if curve.layers:
      methods.setdefault(curve.method, []).append(dict(enumerate(curve.layers, 1)))
  note = "Error of the layers after the alignment: squared difference from the old network's"
  note += " output, divided by that output's squared norm. Mean and standard deviation over runs."
  canvas, panels = style.make_panels(1, 1, style.COLUMN * 1.5, 2.6, note)
  draw_lines(panels[0, 0], methods)
  panels[0, 0].set_xticks(range(1, 1 + max(len(curve.layers) for curve in curves)))
  style.name_axes(panels[0, 0], "layer", "error")
  style.add_legend(canvas, panels[0, 0], title="method (runs)", title_fontsize=style.SMALL)
  return canvas
