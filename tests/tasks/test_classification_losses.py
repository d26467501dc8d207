"""Losses and class weights, against scikit-learn, optax and their definitions."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight

from tests import runs
from vitx.config.errors import ConfigError
from vitx.tasks.classification import Classification
from vitx.tasks.classification_losses import LOSSES, find_class_weights, make_loss
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


def test_a_weighted_softmax_is_scikit_learns_log_loss():
  logits, labels = draw()
  p = np.asarray(jax.nn.softmax(logits), np.float64)
  weights = np.array(WEIGHTS)[labels]
  total = log_loss(labels, p / p.sum(1, keepdims=True), sample_weight=weights, labels=range(4))
  found = loss("softmax", logits, one_hot(labels), weights=WEIGHTS)
  assert found == pytest.approx(total * weights.sum() / len(labels), rel=1e-5)


def test_the_sigmoid_loss_compares_each_class_with_all_others():
  logits, labels = draw()
  mixed = (0.7 * one_hot(labels) + 0.3 * one_hot(labels[::-1])).astype(np.float32)
  each = optax.sigmoid_binary_cross_entropy(jnp.asarray(logits), jnp.asarray(mixed))
  expected = np.asarray(each).sum(1)
  assert loss("sigmoid", logits, mixed) == pytest.approx(expected.mean(), rel=1e-5)
  weighted = (expected * (mixed @ np.array(WEIGHTS))).mean()
  assert loss("sigmoid", logits, mixed, weights=WEIGHTS) == pytest.approx(weighted, rel=1e-5)


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
  found = find_class_weights("balanced", "abc", labels)
  np.testing.assert_allclose(found, expected, rtol=1e-12)
  assert np.mean(np.array(found)[labels]) == pytest.approx(1.0)


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
  np.testing.assert_allclose(experiment.config.task.class_weights, expected, rtol=1e-12)
  again = make_experiment(experiment.config)  # as in a resumed run
  assert again.config.task.class_weights == experiment.config.task.class_weights
  # A plan has no labels, and needs only the cost.
  assert trial.complete_config(runs.tiny(*overrides)).task.class_weights == "balanced"
  assert trial.count_training_flops(trial.complete_config(runs.tiny(*overrides))) > 0


@pytest.mark.usefixtures("whole_runs")
def test_balanced_weights_of_examples_without_labels_are_refused():
  experiment = make_experiment(runs.tiny())
  config, unlabeled = experiment.config.copy_and_resolve_references(), SimpleNamespace(labels=None)
  with config.unlocked(), pytest.raises(ConfigError, match=r"'balanced' counts .* labels=None"):
    config.task.class_weights = "balanced"
    source = SimpleNamespace(info=experiment.source.info, train=unlabeled)
    Classification.resolve(config, source)
