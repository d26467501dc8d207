"""Prediction sets have the coverage that they promise, and agree with their definitions."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

from tests.analysis.test_classification import draw
from vitx.analysis.prediction_sets import Threshold, find_threshold, measure_sets


def test_sets_cover_the_chosen_share_of_new_examples():
  labels, logits = draw(4000, scale=2.0)
  sizes, covered = [], []
  for seed in range(40):
    mixed = np.random.default_rng(seed).permutation(4000)
    known, new = mixed[:200], mixed[200:]
    sets = find_threshold(labels[known], logits[known], 0.9).choose(logits[new])
    covered.append(sets[np.arange(len(new)), labels[new]].mean())
    sizes.append(sets.sum(1).mean())
  assert np.mean(covered) == pytest.approx(0.9, abs=0.01)
  low, high = find_threshold(labels[:200], logits[:200], 0.9).describe()["range"]
  assert np.mean([low <= share <= high for share in covered]) > 0.85
  assert 1 < np.mean(sizes) < 6


def test_the_threshold_is_an_order_statistic():
  p = np.array([[0.7, 0.3], [0.4, 0.6], [0.2, 0.8], [0.9, 0.1]])
  logits, labels = np.log(p), np.array([0, 0, 1, 0])  # the true classes have 0.7, 0.4, 0.8, 0.9
  assert find_threshold(labels, logits, 0.6).value == pytest.approx(0.7)  # the third of four
  assert find_threshold(labels, logits, 0.8).value == pytest.approx(0.4)
  # Four examples cannot promise 90 %, so that each set has all classes.
  assert find_threshold(labels, logits, 0.9).choose(logits).all()
  assert find_threshold(labels, logits, 0.9).describe()["range"] == [1, 1]
  unsure = Threshold(0.6, 0.75, 4).choose(np.append(logits, [[np.nan, 0]], axis=0))
  assert unsure.tolist() == [[0, 0], [0, 0], [0, 1], [1, 0], [1, 1]]


def test_the_range_of_coverage_is_that_of_a_beta_distribution():
  low, high = Threshold(0.9, 0.5, 99).describe()["range"]
  np.testing.assert_allclose([low, high], stats.beta(90, 10).ppf([0.025, 0.975]))


def test_coverage_and_sizes_are_means_over_the_examples():
  labels, logits = draw(300, scale=2.0, absent=(2,))
  sets = softmax(logits, axis=1) >= 0.2
  values, intervals = measure_sets(labels, sets, resamples=50)
  hit, sizes = sets[np.arange(300), labels], sets.sum(1)
  assert values["coverage"] == pytest.approx(hit.mean())
  assert values["set_size"] == pytest.approx(sizes.mean())
  assert values["empty_sets"] == pytest.approx((sizes == 0).mean())
  assert values["class_coverage"][2] is None and intervals["class_set_size"][2] is None
  for label in (0, 5):
    assert values["class_coverage"][label] == pytest.approx(hit[labels == label].mean())
    assert values["class_set_size"][label] == pytest.approx(sizes[labels == label].mean())
  for name in ("coverage", "set_size"):
    low, high = intervals[name]
    assert low < values[name] < high
