"""Spread, paired differences and ranks against values that others computed."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from vitx.analysis import statistics

# Darwin's maize, in eighths of an inch: crossed minus self-fertilized, 15 pairs (Fisher 1935, who
# counts 1,726 of 32,768 assignments of signs whose sum is at least as far from zero).
MAIZE = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], float)


def test_spread_by_hand():
  found = statistics.spread([1.0, 2.0, 6.0])
  assert found == statistics.Spread(3.0, pytest.approx(math.sqrt(7)), 3)
  assert statistics.spread([4.0]) == statistics.Spread(4.0, None, 1)
  with pytest.raises(ValueError, match="no values"):
    statistics.spread([])


def test_sign_flips_of_fisher():
  assert statistics.flip_signs(MAIZE) == 1726 / 32768


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_sign_flips_counted_one_by_one(n):
  differences = np.random.default_rng(n).integers(-3, 5, n) / 359  # ties, as accuracies have them
  sums = [
    sum(sign * round(d * 359) for sign, d in zip(signs, differences, strict=True))
    for signs in itertools.product((1, -1), repeat=n)
  ]
  extreme = sum(abs(each) >= abs(sums[0]) for each in sums)
  assert statistics.flip_signs(differences) == extreme / 2**n


def test_sign_flips_drawn_are_near_the_exact_value():
  differences = np.random.default_rng(3).normal(0.4, 1, 17)
  exact = stats.permutation_test(
    (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
  ).pvalue
  found = statistics.flip_signs(differences)
  assert found == pytest.approx(exact, abs=4e-3)
  assert statistics.flip_signs(differences) == found


def bca_by_formula(x, resamples=40_000):
  """Efron and Tibshirani (1993), equations 14.9 to 14.15."""
  draw = np.random.default_rng(1).integers(0, x.size, (resamples, x.size))
  means = x[draw].mean(1)
  z0 = stats.norm.ppf((means < x.mean()).mean() + (means == x.mean()).mean() / 2)
  left = np.array([np.delete(x, i).mean() for i in range(x.size)])
  gap = left.mean() - left
  a = (gap**3).sum() / (6 * (gap**2).sum() ** 1.5)
  z = stats.norm.ppf([0.025, 0.975])
  return np.quantile(means, stats.norm.cdf(z0 + (z0 + z) / (1 - a * (z0 + z))))


def test_bca_against_its_formula():
  skewed = np.random.default_rng(0).exponential(1, 16) ** 2
  low, high = statistics.bca_interval(skewed)
  want = bca_by_formula(skewed)
  np.testing.assert_allclose([low, high], want, atol=0.04 * (want[1] - want[0]))
  plain = np.quantile(skewed[np.random.default_rng(2).integers(0, 16, (9999, 16))].mean(1), 0.975)
  assert high > plain + 0.05 * (high - low)  # the correction is not idle


def test_differences_are_of_pairs():
  base = np.array([0.9, 0.5, 0.7, 0.6])
  found = statistics.compare_pairs(base + np.array([0.1, 0.1, 0.1, 0.2]), base)
  assert found.mean == pytest.approx(0.125) and found.count == 4
  assert 0.09 < found.low < found.mean < found.high < 0.21
  assert found.p == 2 / 16


def test_differences_that_cannot_say_much():
  same = statistics.compare_pairs([0.5] * 3, [0.5] * 3)
  assert same == statistics.Difference(0.0, 0.0, 0.0, 1.0, 3)
  two = statistics.compare_pairs([0.5, 0.75], [0.25, 0.25])
  assert two == statistics.Difference(0.375, None, None, 0.5, 2)
  one = statistics.compare_pairs([0.5], [0.25])
  assert one == statistics.Difference(0.25, None, None, 1.0, 1)
  with pytest.raises(ValueError, match="no pairs"):
    statistics.compare_pairs([], [])


def test_ranks():
  assert statistics.rank([0.9, 0.95, 0.9, 0.1], "max") == [2.5, 1, 2.5, 4]
  assert statistics.rank([0.9, 0.95, 0.9, 0.1], "min") == [2.5, 4, 2.5, 1]


def test_means_that_differ_in_their_rounding_tie():
  values = [0.1 + 0.2, 0.3, 0.9]
  assert values[0] != values[1]
  assert statistics.rank(values, "max") == [2.5, 2.5, 1]
  assert statistics.agree(values, [1.0, 1.0, 2.0]).rho == pytest.approx(1.0)


def test_spearman_by_hand():
  # 1 - 6 * (sum of squared differences of ranks = 4) / (5 * 24); of 120 orders 16 are as extreme.
  found = statistics.agree([1.0, 2.0, 3.0, 4.0, 5.0], [20.0, 10.0, 30.0, 50.0, 40.0])
  assert found.rho == pytest.approx(0.8) and found.count == 5
  ranks = [2, 1, 3, 5, 4]
  squares = [
    sum((a - b) ** 2 for a, b in zip(order, ranks, strict=True))
    for order in itertools.permutations(range(1, 6))
  ]
  extreme = sum(abs(1 - each / 20) >= 0.8 - 1e-12 for each in squares)
  assert found.p == pytest.approx(extreme / 120)


@pytest.mark.parametrize("ours", [[1.0, 2.0], [1.0, 1.0, 1.0]])
def test_spearman_where_there_is_none(ours):
  assert statistics.agree(ours, list(range(len(ours)))) is None


def test_letters_by_hand():
  """Two methods are far from two others, whose seeds overlap."""
  noise = np.random.default_rng(0).normal(0, 0.1, (8, 4))
  values = noise + np.array([1.0, 3.0, 1.0, 3.0])
  assert statistics.group_by_letters(values, "max") == ["b", "a", "b", "a"]
  assert statistics.group_by_letters(values, "min") == ["a", "b", "a", "b"]
  assert statistics.group_by_letters(np.ones((8, 3)), "max") == ["a", "a", "a"]


def test_letters_of_a_table_in_a_book():
  """Residuals of 1 or -1: q(0.95; 3, 6) is 4.339 in the tables, and the bound 4.339 / sqrt(2)."""
  noise = np.array([[1, -1, 0], [-1, 1, 0], [1, 0, -1], [-1, 0, 1]], float)
  assert ((noise**2).sum() / 6 / 4) ** 0.5 == pytest.approx(1 / 3**0.5)
  bound = 4.339 / 3**0.5
  for gap, letters in ((0.99 * bound, ["a", "a"]), (1.01 * bound, ["a", "b"])):
    values = noise + np.array([0, gap, 10])
    assert statistics.group_by_letters(values, "min")[:2] == letters


def test_a_method_between_two_shares_a_letter_with_both():
  noise = np.array([[1, -1, 0], [-1, 1, 0], [1, 0, -1], [-1, 0, 1]], float)
  values = noise + np.array([4.0, 2.0, 0.0])
  assert statistics.group_by_letters(values, "min") == ["b", "ab", "a"]
  assert statistics.group_by_letters(values, "max") == ["a", "ab", "b"]


def test_letters_tell_apart_what_is_alike_in_five_percent():
  draw = np.random.default_rng(2)
  found = [
    len(set("".join(statistics.group_by_letters(draw.normal(size=(8, 5)), "max")))) > 1
    for _ in range(200)
  ]
  assert 2 <= sum(found) <= 20  # 10 expected


def test_letters_of_two_methods_are_the_paired_t_test():
  for seed in range(12):
    values = np.random.default_rng(seed).normal(0, 1, (9, 2)) + np.array([0, 0.9])
    p = stats.ttest_rel(values[:, 1], values[:, 0]).pvalue
    assert (len(set(statistics.group_by_letters(values, "max"))) == 2) == (p < 0.05)
