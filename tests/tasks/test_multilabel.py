"""The metrics of several classes per example, against scikit-learn."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from sklearn import metrics as reference

from vitx.runtime import evaluation, parallel
from vitx.tasks.multilabel import MultiLabel, average_precision, summarize_multilabel

CLASSES = 4


def draw(count=300, seed=0):
  """Draws logits, from small to extreme, and labels; class 3 is missing."""
  random = np.random.default_rng(seed)
  labels = (random.uniform(size=(count, CLASSES)) < 0.3).astype(np.float32)
  labels[:, 3] = 0
  scale = np.where(np.arange(count) % 2, 30, 1)[:, None]
  return ((random.normal(size=(count, CLASSES)) + labels) * scale).astype(np.float32), labels


def test_metrics_equal_scikit_learns():
  logits, labels = draw()
  summary = summarize_multilabel(logits, labels)
  chosen = logits > 0
  expected = [reference.average_precision_score(labels[:, k], logits[:, k]) for k in range(3)]
  np.testing.assert_allclose(summary["class_ap"][:3], expected, rtol=1e-12)
  assert summary["class_ap"][3] is None and summary["map"] == pytest.approx(np.mean(expected))
  assert summary["f1"] == pytest.approx(reference.f1_score(labels, chosen, average="micro"))
  assert summary["exact"] == pytest.approx(reference.accuracy_score(labels, chosen))
  x = logits.astype(np.longdouble)
  nll = np.log1p(np.exp(np.where(labels > 0, -x, x))).sum(1).mean()
  assert summary["nll"] == pytest.approx(float(nll)) and summary["examples"] == 300


@pytest.mark.parametrize("center", [-30.0, 0.0, 11.0, 30.0])
@pytest.mark.parametrize("steps", [1, 2, 1000])
def test_average_precision_distinguishes_neighboring_floats_and_ties_equal_ones(center, steps):
  random, spacing = np.random.default_rng(0), np.spacing(np.float32(abs(center)))
  scores = np.float32(center) + spacing * random.integers(0, steps, 200).astype(np.float32)
  known = random.uniform(size=200) < 0.2
  expected = reference.average_precision_score(known, scores)
  assert average_precision(scores, known) == pytest.approx(expected, rel=1e-12)


def test_an_example_that_is_not_finite_is_wrong():
  logits, labels = draw(5)
  logits[0, 1] = np.nan
  summary = summarize_multilabel(logits, labels)
  assert np.isnan(summary["nll"]) and summary["exact"] <= 0.8


def test_an_evaluation_gathers_every_example_once_from_all_devices():
  """The logits of the network are the pixels, of which many are equal."""
  model = SimpleNamespace(apply=lambda variables, x, train: x[:, 0, 0] * variables["params"])
  normalize = lambda images: images.astype(np.float32) / 4 - 32  # noqa: E731
  task = MultiLabel(model, None, normalize, CLASSES, 1, 1, CLASSES)
  images = np.random.default_rng(0).integers(0, 256, (300, 1, 1, CLASSES)).astype(np.uint8)
  labels, size = draw()[1], 32 * jax.device_count()
  parts = [np.arange(start, start + size) for start in range(0, 300, size)]  # the last is padded
  batches = [
    {"image": images[rows % 300], "labels": labels[rows % 300], "mask": rows < 300}
    for rows in parts
  ]
  params = {name: parallel.replicate(np.float32(x)) for name, x in (("ema", 1), ("raw", -1))}
  step = evaluation.make_evaluate(task)
  figures = evaluation.evaluate(task, step, params, {}, {}, batches)
  logits = normalize(images)[:, 0, 0]
  assert figures["ema"] == summarize_multilabel(logits, labels)
  assert figures["raw"] == summarize_multilabel(-logits, labels)
