"""Spread, paired differences and ranks agree with published values."""

import itertools
import math

import numpy as np
import pytest

from vitx.analysis import statistics

# Darwin's maize, in eighths of an inch: crossed minus self-fertilized, 15 pairs (Fisher 1935, who
# gives t = 2.148, and 2.145 as the value that 5 % exceed at 14 degrees of freedom).
MAIZE = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], float)


def test_spread_agrees_with_values_by_hand():
  spread = statistics.spread([1.0, 2.0, 6.0])
  assert spread == statistics.Spread(3.0, pytest.approx(math.sqrt(7)), 3)
  assert statistics.spread([4.0]) == statistics.Spread(4.0, None, 1)


def test_the_paired_test_agrees_with_fishers():
  difference = statistics.compare_pairs(MAIZE, np.zeros(15))
  error = MAIZE.std(ddof=1) / math.sqrt(15)
  assert difference.mean / error == pytest.approx(2.148, abs=5e-4)
  assert (difference.high - difference.mean) / error == pytest.approx(2.145, abs=5e-4)
  assert difference.low > 0 and 0.049 < difference.p < 0.05


def test_holms_correction_agrees_with_values_by_hand():
  # The sorted values times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04, none below the one before it.
  assert statistics.adjust([0.04, 0.005, 0.03, 0.01]) == pytest.approx([0.06, 0.02, 0.06, 0.03])
  assert statistics.adjust([0.9, 0.6]) == [1.0, 1.0]
  assert statistics.adjust([]) == []


@pytest.mark.parametrize(
  ("values", "base"), [([0.5], [0.25]), ([0.5] * 3, [0.5] * 3), ([0.4, 0.5, 0.6], [0.1, 0.2, 0.3])]
)
def test_one_pair_or_equal_differences_have_no_interval(values, base):
  difference = statistics.compare_pairs(values, base)
  assert difference.mean == pytest.approx(values[0] - base[0])
  assert (difference.low, difference.high, difference.p) == (None, None, None)


def test_ties_share_a_rank():
  assert statistics.rank([0.9, 0.95, 0.9, 0.1], "max") == [2.5, 1, 2.5, 4]
  assert statistics.rank([0.9, 0.95, 0.9, 0.1], "min") == [2.5, 4, 2.5, 1]


def test_a_nan_changes_no_other_value():
  nan = math.nan
  np.testing.assert_equal(statistics.rank([0.9, nan, 0.95, 0.1], "max"), [2, nan, 1, 3])
  np.testing.assert_equal(statistics.adjust([0.03, nan, 0.01]), [0.06, nan, 0.03])
  ours, published = [1.0, nan, 2.0, 3.0, 5.0, 4.0], [1.0, 9.0, 2.0, 3.0, 4.0, 5.0]
  known = [0, 2, 3, 4, 5]
  expected = statistics.agree([ours[i] for i in known], [published[i] for i in known])
  assert statistics.agree(ours, published) == expected and expected.count == 5
  assert statistics.agree([1.0, nan, 2.0], [1.0, 2.0, 3.0]) is None


def test_means_with_different_rounding_tie():
  values = [0.1 + 0.2, 0.3, 0.9]
  assert values[0] != values[1]
  assert statistics.rank(values, "max") == [2.5, 2.5, 1]
  assert statistics.agree(values, [1.0, 1.0, 2.0]).rho == pytest.approx(1.0)


def test_rank_correlation_agrees_with_values_by_hand():
  # 1 - 6 * (sum of squared differences of ranks = 4) / (5 * 24); of 120 orders 16 are as extreme.
  agreement = statistics.agree([1.0, 2.0, 3.0, 4.0, 5.0], [20.0, 10.0, 30.0, 50.0, 40.0])
  assert agreement.rho == pytest.approx(0.8) and agreement.count == 5
  ranks = [2, 1, 3, 5, 4]
  squares = [
    sum((a - b) ** 2 for a, b in zip(order, ranks, strict=True))
    for order in itertools.permutations(range(1, 6))
  ]
  extreme = sum(abs(1 - total / 20) >= 0.8 - 1e-12 for total in squares)
  assert agreement.p == pytest.approx(extreme / 120)


@pytest.mark.parametrize("ours", [[1.0, 2.0], [1.0, 1.0, 1.0]])
def test_too_few_or_equal_values_have_no_rank_correlation(ours):
  assert statistics.agree(ours, list(range(len(ours)))) is None
