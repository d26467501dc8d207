"""Losses and class weights, against scikit-learn, optax and their definitions."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.utils.class_weight import compute_class_weight

from tests import runs
from vitx.config.errors import ConfigError
from vitx.data.dataset import DatasetInfo
from vitx.data.images.mixup import smooth_targets
from vitx.tasks.classification import resolve_class_weights
from vitx.tasks.classification_losses import (
  LOSSES,
  find_class_weights,
  make_loss,
  make_multilabel_loss,
)
from vitx.tasks.settle import complete_config
from vitx.training import trial
from vitx.training.experiment import make_experiment

CLASSES = 4
WEIGHTS = (0.5, 2.0, 0.0, 1.25)


def draw(count=30, seed=0):
  random = np.random.default_rng(seed)
  labels = random.integers(0, CLASSES, count)
  return random.normal(size=(count, CLASSES)).astype(np.float32) * 2, labels


def one_hot(labels):
  return np.eye(CLASSES, dtype=np.float32)[labels]


def loss(name, logits, targets, gamma=2.0, weights=None):
  return float(make_loss(name, gamma, weights)(jnp.asarray(logits), jnp.asarray(targets)))


def test_the_sigmoid_loss_compares_each_class_with_all_others():
  logits, labels = draw()
  mixed = (0.7 * one_hot(labels) + 0.3 * one_hot(labels[::-1])).astype(np.float32)
  terms = optax.sigmoid_binary_cross_entropy(jnp.asarray(logits), jnp.asarray(mixed))
  expected = np.asarray(terms).sum(1)
  assert loss("sigmoid", logits, mixed) == pytest.approx(expected.mean(), rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_smoothing_changes_no_weight_of_an_example_or_of_a_mixture(name, share):
  logits, labels = draw()
  smooth = np.asarray(smooth_targets(jnp.asarray(labels), CLASSES, 0.1))
  targets, weights = share * smooth + (1 - share) * smooth[::-1], np.array(WEIGHTS)[labels]
  loss = jax.vmap(lambda *one: make_loss(name, 2.0, None)(*(x[None] for x in one)))(logits, targets)
  expected = np.mean((share * weights + (1 - share) * weights[::-1]) * np.asarray(loss))
  assert make_loss(name, 2.0, WEIGHTS, 0.1)(logits, targets) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_weights_of_several_classes_count_for_examples_that_have_them(smoothing):
  logits, _ = draw()
  labels = (np.random.default_rng(2).uniform(size=logits.shape) < 0.4).astype(np.float32)
  counts = find_class_weights("balanced", "abcd", labels)
  assert np.array(counts) * labels.sum(0) == pytest.approx((1 - labels).sum(0))
  labels[0] = 0.3  # as after mixup
  targets = np.asarray(smooth_targets(jnp.asarray(labels), CLASSES, smoothing))
  terms = np.asarray(optax.sigmoid_binary_cross_entropy(logits, targets))
  expected = ((labels * WEIGHTS + 1 - labels) * terms).sum(1).mean()
  assert make_multilabel_loss(WEIGHTS, smoothing)(logits, targets) == pytest.approx(expected)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_focal_loss_follows_its_definition(gamma):
  logits, labels = draw(seed=1)
  p = np.asarray(jax.nn.softmax(logits.astype(np.float64)))[np.arange(len(labels)), labels]
  expected = (-((1 - p) ** gamma) * np.log(p)).mean()
  assert loss("focal", logits, one_hot(labels), gamma) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_gradients_are_finite_at_certain_predictions(name, gamma):
  logits = jnp.asarray([[500.0, 0, 0, 0], [0, 500.0, 0, 0], [0, 0, 0, 0]], jnp.float32)
  targets = jnp.asarray(one_hot([0, 2, 3]))
  value, gradient = jax.value_and_grad(make_loss(name, gamma, None))(logits, targets)
  assert np.isfinite(value) and np.isfinite(gradient).all()


def test_balanced_weights_are_scikit_learns():
  labels = np.repeat([0, 1, 2], [60, 30, 7]).astype(np.int32)
  expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
  weights = find_class_weights("balanced", "abc", labels)
  np.testing.assert_allclose(weights, expected, rtol=1e-12)
  assert np.mean(np.array(weights)[labels]) == pytest.approx(1.0)


def test_a_class_without_examples_has_no_balanced_weight():
  with pytest.raises(ConfigError, match="train has no example of the class 'b'"):
    find_class_weights("balanced", "abc", np.array([0, 2, 2]))
  assert find_class_weights("balanced", "abc", None) == "balanced"


@pytest.mark.usefixtures("whole_runs")
def test_an_experiment_records_the_numbers_of_its_own_training_examples():
  overrides = "task.class_weights=balanced", "task.loss=focal", "data.fraction=0.3"
  experiment = make_experiment(runs.tiny(*overrides))
  labels = experiment.source.train.labels
  expected = compute_class_weight("balanced", classes=np.arange(10), y=labels)
  np.testing.assert_allclose(experiment.settings.task.class_weights, expected, rtol=1e-12)
  again = make_experiment(experiment.settings)  # as in a resumed run
  assert again.settings.task.class_weights == experiment.settings.task.class_weights
  # A plan has no labels, and needs only the cost.
  assert complete_config(runs.tiny(*overrides)).task.class_weights == "balanced"
  assert trial.count_training_flops(complete_config(runs.tiny(*overrides))) > 0


def test_balanced_weights_need_the_labels_of_train():
  source = SimpleNamespace(info=DatasetInfo("x", {}), train=SimpleNamespace(labels=None))
  with pytest.raises(ConfigError, match=r"'balanced' counts .* labels=None"):
    resolve_class_weights(runs.tiny("task.class_weights=balanced"), source)
