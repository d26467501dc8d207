"""Sets of classes that contain the true class with a chosen probability.

Split conformal prediction (Vovk et al. 2005) with the score of Sadinle, Lei and Wasserman (2019): a
set has all classes whose probability is at least a threshold, which is found on examples that had
no other use. If new examples are drawn as these were, their sets contain the true class with at
least the chosen probability, whatever the model.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import scipy.special
from scipy.sparse import csr_array

from vitx.analysis.classification import RESAMPLES, draw_weights, find_interval, to_plain
from vitx.analysis.statistics import divide

COVERAGE = 0.9  # the coverage of a report's sets


@dataclasses.dataclass(frozen=True)
class Threshold:
  """The least probability of a class in a set.

  Attributes:
    coverage: The chosen probability that a set contains the true class.
    value: The least probability; 0 puts all classes into each set.
    examples: The number of examples from which the threshold comes.
  """

  coverage: float
  value: float
  examples: int

  def choose(self, logits: np.ndarray) -> np.ndarray:
    """Returns whether each class is in the set of an example, bool (n, K), from logits (n, K).

    A set is empty if no class is as probable as the threshold. If a logit is not finite, all
    classes are in the set.
    """
    return ~(_probabilities(logits) < self.value)

  def describe(self) -> dict[str, Any]:
    """Returns the threshold as JSON values.

    `range` is the 95 % interval of the coverage of sets over draws of the examples for calibration,
    which follows a beta distribution (Vovk 2012).
    """
    rank = _rank(self.examples, self.coverage)
    spare = self.examples + 1 - rank
    ends = scipy.special.betaincinv(rank, spare, [0.025, 0.975]).tolist() if spare > 0 else [1, 1]
    return {**dataclasses.asdict(self), "range": ends}


def find_threshold(labels: np.ndarray, logits: np.ndarray, coverage: float) -> Threshold:
  """Returns the threshold of sets that contain the true class with the probability `coverage`.

  Args:
    labels: The true classes of the examples for calibration, (n,).
    logits: The logits for them, (n, K).
    coverage: The probability, between 0 and 1.
  """
  true = np.take_along_axis(_probabilities(logits), labels[:, None], axis=1)[:, 0]
  ranked, rank = np.sort(np.nan_to_num(true, nan=0.0))[::-1], _rank(len(labels), coverage)
  value = float(ranked[rank - 1]) if rank <= len(labels) else 0.0
  return Threshold(coverage, value, len(labels))


def measure_sets(
  labels: np.ndarray, sets: np.ndarray, resamples: int = RESAMPLES
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Computes the coverage and the size of sets, with 95 % bootstrap intervals over the examples.

  Args:
    labels: The true classes, (n,).
    sets: Whether each class is in the set of an example, bool (n, K).
    resamples: The number of bootstrap resamples.

  Returns:
    The metrics by name, and their intervals by name. The metrics are coverage (the share of sets
    that contain the true class), set_size (the mean number of classes in a set), empty_sets (the
    share of sets without a class), and class_coverage and class_set_size, lists of values by true
    class, None for a class without examples.
  """
  count, classes = sets.shape
  sizes, rows = sets.sum(axis=1), np.arange(count)
  # In row i: 1, whether its set has its class, and the size, each in the column of its class; and
  # in the last column, whether its set is empty.
  columns = [labels, labels + classes, labels + 2 * classes, np.full(count, 3 * classes)]
  terms = [np.ones(count), sets[rows, labels], sizes, sizes == 0]
  places = (np.tile(rows, 4), np.concatenate(columns))
  matrix = csr_array((np.concatenate(terms), places), shape=(count, 3 * classes + 1))

  def figures(sums: np.ndarray) -> dict[str, np.ndarray]:
    examples, inside, total = np.split(sums[:, :-1], 3, axis=1)
    whole = {"coverage": inside, "set_size": total}
    result = {name: x.sum(axis=1) / examples.sum(axis=1) for name, x in whole.items()}
    result["empty_sets"] = sums[:, -1] / examples.sum(axis=1)
    for name, x in whole.items():
      result[f"class_{name}"] = np.where(examples > 0, divide(x, examples), np.nan)
    return result

  point = figures(np.ones((1, count)) @ matrix)
  parts = [figures(weights @ matrix) for weights in draw_weights(count, resamples)]
  pooled = {name: np.concatenate([part[name] for part in parts]) for name in point}
  values = {name: to_plain(x[0]) for name, x in point.items()}
  return values, {name: find_interval(x) for name, x in pooled.items()}


def _rank(count: int, coverage: float) -> int:
  """Returns the rank, among `count` probabilities from the highest, of the threshold."""
  return math.ceil((count + 1) * coverage - 1e-9)


def _probabilities(logits: np.ndarray) -> np.ndarray:
  return scipy.special.softmax(np.asarray(logits, np.float64), axis=1)
