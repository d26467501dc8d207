"""From sums over examples to the figures that people read."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def add(total: Mapping[str, Any], sums: Mapping[str, Any]) -> dict[str, Any]:
  """Adds one batch's sums to a running total, in float64; what the total lacks counts as zero."""
  return {
    name: total.get(name, 0.0) + np.asarray(value, np.float64) for name, value in sums.items()
  }


def summarize(total: Mapping[str, Any]) -> dict[str, Any]:
  """Turns totals of `tasks.classification_sums` into figures.

  Returns:
    examples; top1, top5 in 0..1; nll in nats; ece, the expected calibration error over 15 equal
    bins (Guo et al. 2017, equation 3); class_top1, per class, None for a class without examples.

  Raises:
    ValueError: there were no examples.
  """
  count = float(total["count"])
  if count == 0:
    raise ValueError("the split has no examples to evaluate")
  gap = np.abs(np.asarray(total["bin_top1"]) - np.asarray(total["bin_confidence"]))
  return {
    "examples": int(count),
    "top1": float(total["top1"]) / count,
    "top5": float(total["top5"]) / count,
    "nll": float(total["nll"]) / count,
    "ece": float(gap.sum()) / count,
    "class_top1": [
      float(hits) / float(n) if n else None
      for hits, n in zip(total["class_top1"], total["class_count"], strict=True)
    ],
  }
