"""Draws few-shot curves of probes: accuracy against the number of training examples per class."""

from collections.abc import Mapping
from typing import Any

from vitx.analysis.figures import style


def plot_few_shot(result: Mapping[str, Any]) -> Any:
  """Returns matplotlib's figure of the few-shot curves in a result of `vitx.probe`.

  A cross shows the accuracy of a method that learned from all training examples.
  """
  draws = len(result["few_shot"][0]["values"])
  caption = (
    f"Probes of {result['features']} frozen features on {result['source']}: mean over {draws} draws"
    f" and its 95 % t interval; ×: all {result['examples']['train']:,} training examples."
  )
  canvas, panels = style.make_panels(1, 1, style.COLUMN, 2.4, caption)
  axes = panels[0, 0]
  last = max(row["shots"] for row in result["few_shot"])
  for number, (method, whole) in enumerate(result["methods"].items()):
    rows = [row for row in result["few_shot"] if row["method"] == method]
    color, shots = f"C{number}", [row["shots"] for row in rows]
    means = [100 * row["mean"] for row in rows]
    axes.plot(shots, means, color=color, marker=".", markersize=4, linewidth=1, label=method)
    for edge in rows:
      if edge["low"] is not None:
        ends = [100 * edge["low"], 100 * edge["high"]]
        axes.plot([edge["shots"]] * 2, ends, color=color, linewidth=2, alpha=0.4)
    axes.plot([2 * last], [100 * whole["test"]], "x", color=color, markersize=5)
  shots = sorted({row["shots"] for row in result["few_shot"]})
  axes.set_xscale("log")
  axes.set_xticks([*shots, 2 * last], [*map(str, shots), "all"])
  axes.minorticks_off()
  style.name_axes(axes, "training examples of each class", "test top-1 (%)")
  style.add_legend(canvas, axes, loc="outside upper center", ncols=len(result["methods"]))
  return canvas
