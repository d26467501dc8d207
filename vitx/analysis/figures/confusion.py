"""Draws the confusion matrix of a classifier's predictions on a split."""

from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis.classification import count_confusion
from vitx.analysis.figures import style
from vitx.analysis.figures.mistakes import PredictedSplit, shorten

NUMBERED, NAMED = 25, 60  # The most classes whose counts, and whose names, can be read.


def draw(split: PredictedSplit, out: Path) -> list[Path]:
  """Draws the confusion matrix, and writes its counts as a CSV file.

  For many classes, another CSV file lists the confusions, the most frequent one first.
  """
  names = split.class_names
  counts = count_confusion(split.predictions, len(names))
  canvas = plot_confusion(counts, names, f"{split.note}.")
  rows = [
    {"true class": name, **dict(zip(names, row.tolist(), strict=True))}
    for name, row in zip(names, counts, strict=True)
  ]
  files = style.save_both(canvas, out, f"confusion_{split.label}", rows)
  if len(names) <= NUMBERED:
    return files
  wrong = counts * (1 - np.eye(len(names), dtype=counts.dtype))
  order = np.argsort(-wrong, axis=None, kind="stable")[: np.count_nonzero(wrong)]
  confusions = [
    {"true class": names[i], "predicted class": names[j], "examples": counts[i, j]}
    for i, j in zip(*np.divmod(order, len(names)), strict=True)
  ]
  return [*files, style.write_rows(out / f"confusions_{split.label}.csv", confusions)]


def plot_confusion(counts: np.ndarray, names: tuple[str, ...], note: str = "") -> Any:
  """Returns matplotlib's figure of the counts (K, K) by true class (rows) and predicted class."""
  classes = len(names)
  shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
  side = min(max(style.COLUMN, 0.3 * classes + 1.2), style.PAGE)
  caption = f"{note} Confusion matrix: colors are shares of a true class"
  caption += ", numbers are examples." if classes <= NUMBERED else "."
  canvas, panels = style.make_panels(1, 1, side, side, caption.strip())
  axes = panels[0, 0]
  image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
  axes.set_xlabel("predicted class", fontsize=style.NORMAL)
  axes.set_ylabel("true class", fontsize=style.NORMAL)
  if classes <= NAMED:
    short = [shorten(name, 18) for name in names]
    size = style.SMALL if classes <= NUMBERED else 4
    is_long = max(map(len, short)) > 3
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if is_long else {}
    axes.set_xticks(range(classes), short, fontsize=size, **turned)
    axes.set_yticks(range(classes), short, fontsize=size)
  if classes <= NUMBERED:
    for (row, column), count in np.ndenumerate(counts):
      if count:
        color = "white" if shares[row, column] > 0.5 else "black"
        at = {"ha": "center", "va": "center", "fontsize": style.SMALL}
        axes.text(column, row, f"{count:,}", color=color, **at)
  style.add_scale(canvas, image, axes)
  return canvas
