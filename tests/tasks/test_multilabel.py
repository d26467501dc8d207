"""The metrics of several classes per example, against scikit-learn."""

import numpy as np
import pytest
from sklearn import metrics as reference

from tests.tasks.test_classification import figures
from vitx.tasks.multilabel import BINS, LARGEST, average_precision

CLASSES = 4


def draw(count=300, seed=0):
  """Draws logits and labels; class 3 is missing.

  The logits are the centers of the histograms' bins, so that binning loses nothing.
  """
  random = np.random.default_rng(seed)
  labels = (random.uniform(size=(count, CLASSES)) < 0.3).astype(np.float32)
  labels[:, 3] = 0
  width = 2 * LARGEST / BINS
  raw = random.normal(size=(count, CLASSES)) * 3 + 2 * labels - 1
  logits = np.floor(np.clip(raw, -11, 11) / width) * width + width / 2
  return logits.astype(np.float32), labels


def test_metrics_equal_scikit_learns():
  logits, labels = draw()
  found = figures(logits, labels, parts=3)
  chosen = logits > 0
  expected = [reference.average_precision_score(labels[:, k], logits[:, k]) for k in range(3)]
  np.testing.assert_allclose(found["class_ap"][:3], expected, rtol=1e-9)
  assert found["class_ap"][3] is None
  macro = reference.average_precision_score(labels[:, :3], logits[:, :3], average="macro")
  assert found["map"] == pytest.approx(macro)
  assert found["f1"] == pytest.approx(reference.f1_score(labels, chosen, average="micro"))
  assert found["exact"] == pytest.approx(reference.accuracy_score(labels, chosen))
  p = 1 / (1 + np.exp(-logits.astype(np.float64)))
  nll = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).sum(1).mean()
  assert found["nll"] == pytest.approx(nll, rel=1e-5) and found["examples"] == 300


def test_scores_between_the_bins_change_little():
  logits, labels = draw(seed=1)
  moved = logits + np.random.default_rng(2).normal(0, 0.05, logits.shape).astype(np.float32)
  expected = reference.average_precision_score(labels[:, :3], moved[:, :3], average="macro")
  assert figures(moved, labels)["map"] == pytest.approx(expected, abs=2e-3)


def test_equal_scores_are_one_threshold():
  positives, negatives = np.array([1.0, 0, 2]), np.array([3.0, 1, 2])
  scores, labels = [0, 0, 0, 0, 1, 2, 2, 2, 2], [1, 0, 0, 0, 0, 1, 1, 0, 0]
  expected = reference.average_precision_score(labels, scores)
  assert average_precision(positives, negatives) == pytest.approx(expected)


def test_an_example_that_is_not_finite_is_wrong():
  logits, labels = draw(5)
  logits[0, 1] = np.nan
  found = figures(logits, labels)
  assert np.isnan(found["nll"]) and found["exact"] <= 0.8
