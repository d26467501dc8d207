"""Probes agree with scikit-learn, and their settings are those that validation prefers."""

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitx.analysis.probes import METHODS, LabeledFeatures, score
from vitx.analysis.statistics import mean_interval


def draw(count, seed, classes=4, width=6):
  """Draws features whose classes overlap; the labels are not 0, 1, 2, ..."""
  random = np.random.default_rng(seed)
  labels = random.integers(0, classes, count)
  centers = np.random.default_rng(0).normal(size=(classes, width))
  values = centers[labels] + random.normal(0, 1.2, (count, width))
  return LabeledFeatures(values.astype(np.float32), (labels * 3).astype(np.int32))


TRAIN, VALIDATION, TEST = draw(150, 1), draw(80, 2), draw(90, 3)
SKLEARN = {
  "knn": lambda k: KNeighborsClassifier(k, metric="cosine"),
  "ridge": lambda alpha: make_pipeline(StandardScaler(), RidgeClassifier(alpha)),
  "logistic": lambda c: make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=1000)),
}


@pytest.mark.parametrize("name", METHODS)
def test_each_setting_predicts_as_scikit_learn(name):
  method = METHODS[name]
  predicted = list(method.predict(TRAIN, TEST.values, method.grid))
  for setting, labels in zip(method.grid, predicted, strict=True):
    peer = SKLEARN[name](setting).fit(TRAIN.values.astype(np.float64), TRAIN.labels)
    np.testing.assert_array_equal(labels, peer.predict(TEST.values.astype(np.float64)))


@pytest.mark.parametrize("name", METHODS)
def test_validation_chooses_the_first_best_and_test_judges_it(name):
  grid, rates = METHODS[name].grid, []
  for setting in grid:
    peer = SKLEARN[name](setting).fit(TRAIN.values.astype(np.float64), TRAIN.labels)
    rates.append([peer.score(x.values.astype(np.float64), x.labels) for x in (VALIDATION, TEST)])
  best = max(range(len(grid)), key=lambda i: rates[i][0])
  choice = score(name, TRAIN, VALIDATION, TEST)
  assert (choice.setting, [choice.validation, choice.test]) == (grid[best], rates[best])
  assert choice.at_end == (best in (0, len(grid) - 1))
  assert 0.4 < choice.test < 1


def test_few_examples_have_few_neighbors():
  few = TRAIN.take(np.arange(3))
  choice = score("knn", few, VALIDATION, TEST)
  assert len(few) == 3 and choice.setting in (1, 2) and choice.at_end


def test_an_endless_fit_gives_no_warning():
  separable = LabeledFeatures(np.eye(40, dtype=np.float32), np.arange(40, dtype=np.int32) % 2)
  assert score("logistic", separable, separable, separable).test == 1.0


def test_the_interval_of_a_mean_follows_students_t():
  values = [0.5, 0.6, 0.8, 0.4]
  expected = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
  np.testing.assert_allclose(mean_interval(values), expected)
  assert mean_interval([0.5]) is None and mean_interval([0.5, 0.5]) is None
