"""What a few runs can say: spread, paired differences with their uncertainty, and ranks.

Runs of one seed share order, splits and augmentation, so methods are compared seed by seed.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import stats

LEVEL = 0.95  # of intervals


@dataclasses.dataclass(frozen=True)
class Spread:
  """Mean and standard deviation of a figure over seeds.

  Attributes:
    mean: of the values.
    sd: with n - 1 in the denominator; None of one value.
    count: n.
  """

  mean: float
  sd: float | None
  count: int


@dataclasses.dataclass(frozen=True)
class Difference:
  """A method minus another over the seeds that both have.

  Attributes:
    mean: of the differences.
    low, high: The ends of the 95 % t interval of the mean; None of one pair, or where all
      differences are equal: Student's t is not defined there.
    p: The two-sided p-value of the paired t-test; None where the interval is.
    count: The number of pairs.
  """

  mean: float
  low: float | None
  high: float | None
  p: float | None
  count: int


@dataclasses.dataclass(frozen=True)
class Agreement:
  """How far two orders of the same methods agree.

  Attributes:
    rho: Spearman's correlation of the ranks, in -1..1.
    p: two-sided, against no correlation, by permutation.
    count: methods.
  """

  rho: float
  p: float
  count: int


def spread(values: Sequence[float]) -> Spread:
  """Returns mean and standard deviation; raises ValueError if there are no values."""
  if not len(values):
    raise ValueError("no values")
  sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
  return Spread(float(np.mean(values)), sd, len(values))


def compare_pairs(values: Sequence[float], base: Sequence[float]) -> Difference:
  """Returns how much the values exceed those of the same seeds in `base`, by Student's t.

  Raises:
    ValueError: there are no pairs.
  """
  differences = np.asarray(values, float) - np.asarray(base, float)
  count = differences.size
  if not count:
    raise ValueError("no pairs")
  mean = float(differences.mean())
  # Accuracies on few examples tie: a spread that rounding alone has made is none.
  if count == 1 or np.ptp(differences) <= 1e-9 * np.abs(differences).max():
    return Difference(mean, None, None, None, count)
  error = float(differences.std(ddof=1)) / math.sqrt(count)
  half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * error
  p = 2 * float(stats.t.sf(abs(mean) / error, count - 1))
  return Difference(mean, mean - half, mean + half, p, count)


def adjust(p_values: Sequence[float]) -> list[float]:
  """Returns p-values that hold for all tests together, by Holm (1979), in the order given."""
  order = np.argsort(p_values, kind="stable")
  factors = len(p_values) - np.arange(len(p_values))
  raised = np.minimum(np.maximum.accumulate(np.asarray(p_values, float)[order] * factors), 1.0)
  adjusted = np.empty(len(p_values))
  adjusted[order] = raised
  return adjusted.tolist()


def rank(values: Sequence[float], mode: Literal["max", "min"]) -> list[float]:
  """Returns the rank of each value from 1, the best; those that tie share the mean of theirs.

  Args:
    values: of one figure.
    mode: whether a good value is high ("max") or low ("min").
  """
  return _rank([-value if mode == "max" else value for value in values]).tolist()


def _rank(values: Sequence[float]) -> np.ndarray:
  """Returns ranks from 1, the lowest; means that differ only in their rounding tie."""
  return stats.rankdata([float(f"{value:.12g}") for value in values])


def agree(ours: Sequence[float], published: Sequence[float]) -> Agreement | None:
  """Returns Spearman's correlation of two lists of a figure; None where it is not defined.

  That is of fewer than three methods, or where all tie in one of the lists. The p-value is exact up
  to 8 methods, beyond of 9,999 permutations.
  """
  x, y = (_rank(values) for values in (ours, published))
  if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
    return None
  rho, centered = float(stats.spearmanr(x, y).statistic), y - y.mean()
  tested = stats.permutation_test(
    (x,),
    lambda order, axis: (order * centered).sum(axis),  # goes with rho
    permutation_type="pairings",
    vectorized=True,
    n_resamples=9_999 if len(x) > 8 else 50_000,
    rng=np.random.default_rng(0),
  )
  return Agreement(rho, float(tested.pvalue), len(x))
