"""Statistics of a few runs: spread, paired differences with their uncertainty, and ranks.

Runs with one seed have equal data order, splits and augmentation, so methods are compared seed by
seed.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

LEVEL = 0.95  # The level of the intervals.


@dataclasses.dataclass(frozen=True)
class Spread:
  """The mean, the standard deviation (n - 1; `None` for one value) and the number of values."""

  mean: float
  sd: float | None
  count: int


@dataclasses.dataclass(frozen=True)
class Difference:
  """The difference between two methods over the runs that both have, such as those of equal seeds.

  Attributes:
    mean: The mean of the differences.
    low, high: The ends of the 95 % t interval of the mean, or `None` where Student's t is not
      defined: if there is one pair or all differences are equal.
    p: The two-sided p-value of the paired t-test, or `None` without an interval.
    count: The number of pairs.
  """

  mean: float
  low: float | None
  high: float | None
  p: float | None
  count: int


@dataclasses.dataclass(frozen=True)
class Agreement:
  """Spearman's rank correlation of `count` methods, and its two-sided p-value by permutations."""

  rho: float
  p: float
  count: int


def divide(numerator: np.ndarray | float, denominator: np.ndarray) -> np.ndarray:
  """Divides by nonnegative numbers, elementwise; the result is 0 where the denominator is 0."""
  return np.where(denominator > 0, numerator / np.maximum(denominator, 1e-300), 0.0)


def spread(values: Sequence[float]) -> Spread:
  """Returns the mean and standard deviation of values."""
  sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
  return Spread(float(np.mean(values)), sd, len(values))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
  """Returns the 95 % t interval of the mean of independent values, or `None`, see `Difference`."""
  difference = compare_pairs(values, [0.0] * len(values))
  low, high = difference.low, difference.high
  return None if low is None or high is None else (low, high)


def compare_pairs(values: Sequence[float], base: Sequence[float]) -> Difference:
  """Returns the mean difference between two methods over paired runs, with a t interval and test.

  Args:
    values: The metric of a method, one value for each run.
    base: The metric of the method to compare with; run i is paired with run i of `values`.
  """
  from scipy import stats  # The import takes a second; the tasks of a sweep need none of it.

  differences = np.asarray(values, float) - np.asarray(base, float)
  count, mean = differences.size, float(differences.mean())
  # Accuracies on few examples often tie; a spread that is only due to rounding counts as none.
  if count == 1 or np.ptp(differences) <= 1e-9 * np.abs(differences).max():
    return Difference(mean, None, None, None, count)
  tested = stats.ttest_1samp(differences, 0)
  interval = tested.confidence_interval(LEVEL)
  return Difference(mean, float(interval.low), float(interval.high), float(tested.pvalue), count)


def adjust(p_values: Sequence[float]) -> list[float]:
  """Corrects p-values for the number of tests by Holm's method (1979); the order is unchanged."""
  order = np.argsort(p_values, kind="stable")  # NaN comes last, and so changes no other value
  factors = len(p_values) - np.arange(len(p_values))
  raised = np.minimum(np.maximum.accumulate(np.asarray(p_values, float)[order] * factors), 1.0)
  adjusted = np.empty(len(p_values))
  adjusted[order] = raised
  return adjusted.tolist()


def rank(values: Sequence[float], mode: Literal["max", "min"]) -> list[float]:
  """Returns the rank of each value, 1 for the best; tied values share the mean of their ranks.

  The rank of NaN is NaN, and the other values are ranked without it. High ("max") or low ("min")
  values are good.
  """
  return _rank([-value if mode == "max" else value for value in values]).tolist()


def _rank(values: Sequence[float]) -> np.ndarray:
  """Returns ranks, 1 for the lowest value; values that differ only by rounding share a rank."""
  from scipy import stats

  return stats.rankdata([float(f"{value:.12g}") for value in values], nan_policy="omit")


def agree(ours: Sequence[float], published: Sequence[float]) -> Agreement | None:
  """Returns Spearman's rank correlation of two lists of values, or `None` if it is undefined.

  Methods of which a value is NaN are left out. The correlation is undefined for fewer than three
  other methods, or if all their values in a list are equal. The p-value is exact for up to 8
  methods, and comes from 9,999 permutations for more.

  Args:
    ours: Our value of each method.
    published: The published value of each method, in the order of `ours`.
  """
  from scipy import stats

  known = ~np.isnan([ours, published]).any(axis=0)
  x, y = (_rank(np.asarray(values)[known].tolist()) for values in (ours, published))
  if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
    return None
  rho, centered = float(stats.spearmanr(x, y).statistic), y - y.mean()
  tested = stats.permutation_test(
    (x,),
    lambda order, axis: (order * centered).sum(axis),  # This sum increases with rho.
    permutation_type="pairings",
    vectorized=True,
    n_resamples=9_999 if len(x) > 8 else 50_000,
    rng=np.random.default_rng(0),
  )
  return Agreement(rho, float(tested.pvalue), len(x))
