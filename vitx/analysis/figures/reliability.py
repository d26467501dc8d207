"""Draws the reliability diagram of a classifier's predictions: accuracy by confidence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis.classification import BINS, bin_predictions
from vitx.analysis.figures import style
from vitx.analysis.figures.mistakes import PredictedSplit


def draw(split: PredictedSplit, out: Path) -> list[Path]:
  """Draws the reliability diagram, and writes its bins as a CSV file."""
  bins = bin_predictions(split.predictions)
  canvas = plot_reliability(bins, f"{split.note}.")
  rows = [
    {"low": number / BINS, "high": (number + 1) / BINS, **{key: bins[key][number] for key in bins}}
    for number in range(BINS)
  ]
  return style.save_both(canvas, out, f"reliability_{split.label}", rows)


def plot_reliability(bins: Mapping[str, Sequence[Any]], note: str = "") -> Any:
  """Returns the figure of a reliability diagram, with the number of examples in each bin below."""
  caption = f"{note} Accuracy by confidence, in {BINS} equal bins; on the line both are equal."
  canvas, panels = style.make_panels(2, 1, style.COLUMN, style.COLUMN, caption.strip())
  above, below = panels[:, 0]
  above.get_gridspec().set_height_ratios((3, 1))
  left, width = np.arange(BINS) / BINS, 1 / BINS
  accuracy = np.array([np.nan if x is None else x for x in bins["accuracy"]])
  confidence = np.array([np.nan if x is None else x for x in bins["confidence"]])
  above.bar(left, accuracy, width, align="edge", color="tab:blue", edgecolor="white", lw=0.5)
  above.plot([0, 1], [0, 1], color="gray", lw=0.8, ls="--")
  dots = {"color": "tab:orange", "ms": 2.5, "clip_on": False, "zorder": 3}
  above.plot(confidence, accuracy, "o", label="mean confidence", **dots)
  style.name_axes(above, "", "accuracy")
  above.legend(loc="upper left", fontsize=style.SMALL, frameon=False)
  below.bar(left, bins["examples"], width, align="edge", color="silver", edgecolor="white", lw=0.5)
  style.name_axes(below, "confidence (highest probability)", "examples")
  above.set(xlim=(0, 1), ylim=(0, 1))
  below.set(xlim=(0, 1))
  return canvas
