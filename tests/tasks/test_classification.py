"""The metrics of a split, against their definitions in NumPy."""

import jax
import numpy as np
import pytest
from sklearn import metrics as reference

from vitx.runtime.evaluation import add_sums
from vitx.tasks.classification import Classification
from vitx.tasks.classification_figures import (
  ECE_BINS,
  classification_sums,
  summarize_classification,
)
from vitx.tasks.figures import describe, table

SUMS = jax.jit(classification_sums, static_argnums=3)


def figures(logits, labels, mask=None, parts=1):
  """Returns the metrics of a split, summed in parts."""
  mask = np.ones(len(labels), bool) if mask is None else mask
  total = {}
  for part in np.array_split(np.arange(len(labels)), parts):
    arguments = logits[part], labels[part], mask[part]
    total = add_sums(total, jax.device_get(SUMS(*arguments, logits.shape[1])["sums"]))
  return summarize_classification(total)


def random(n=498, classes=10, seed=0):
  generator = np.random.default_rng(seed)
  labels = generator.integers(0, classes - 1, n)  # the last class has no example
  logits = generator.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]
  return logits.astype(np.float32), labels.astype(np.int32)


def test_metrics_equal_scikit_learns():
  logits, labels = random()
  p = np.exp(logits.astype(np.float64))
  p /= p.sum(1, keepdims=True)
  result = figures(logits, labels, parts=3)
  assert result["examples"] == 498
  assert result["top1"] == pytest.approx((p.argmax(1) == labels).mean())
  top5 = reference.top_k_accuracy_score(labels, p, k=5, labels=np.arange(10))
  assert result["top5"] == pytest.approx(top5)
  assert result["nll"] == pytest.approx(reference.log_loss(labels, p, labels=np.arange(10)))
  recall = reference.recall_score(labels, p.argmax(1), average=None, labels=np.arange(9))
  np.testing.assert_allclose(result["class_top1"][:9], recall, rtol=1e-6)
  assert result["class_top1"][9] is None


def test_the_calibration_error_follows_its_definition():
  logits, labels = random(seed=1)
  p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  confidence, hit = p.max(1), p.argmax(1) == labels
  error = 0.0
  for low in np.arange(ECE_BINS) / ECE_BINS:
    inside = (confidence > low) & (confidence <= low + 1 / ECE_BINS)
    if inside.any():
      error += inside.mean() * abs(hit[inside].mean() - confidence[inside].mean())
  assert figures(logits, labels, parts=3)["ece"] == pytest.approx(error, abs=1e-5)


@pytest.mark.parametrize("padding", [1.0, np.nan])
def test_masked_rows_do_not_count(padding):
  logits, labels = random(40)
  mask = np.arange(40) < 25
  padded = np.where(mask[:, None], logits, np.float32(padding))
  masked, alone = figures(padded, labels, mask), figures(logits[:25], labels[:25])
  assert masked.pop("class_top1") == alone.pop("class_top1")
  assert masked == pytest.approx(alone)


def test_ties_count_once_and_few_classes_are_all_in_the_top_five():
  logits = np.zeros((3, 3), np.float32)
  result = figures(logits, np.array([0, 1, 2], np.int32))
  assert result["top1"] == pytest.approx(1 / 3) and result["top5"] == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_finite_is_wrong_for_every_class(bad):
  logits = np.full((3, 3), bad, np.float32)
  result = figures(logits, np.array([0, 1, 2], np.int32))
  assert result["top1"] == 0 and result["top5"] == 0
  assert result["class_top1"] == [0, 0, 0]
  assert np.isnan(result["nll"])


@pytest.mark.parametrize(("classes", "is_shown"), [(5, False), (6, True)])
def test_top5_is_shown_for_more_than_five_classes(classes, is_shown):
  """Top-5 accuracy is always 1 with five classes or fewer."""
  logits, labels = random(classes=classes)
  score = figures(logits, labels)
  task = Classification(None, None, None, classes, 8, 8, 1)
  texts = describe(task.figures, score), table(task.figures, score, list(map(str, range(classes))))
  assert all(("top-5" in text) == is_shown for text in texts) and "top5" in score
