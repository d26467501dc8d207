"""Losses of classifiers against (mixed, smoothed) targets, and weights of classes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from vitx.config.errors import ConfigError
from vitx.data.images.mixup import unsmooth_targets
from vitx.tasks.classification_figures import cross_entropy

MeanLoss = Callable[[jax.Array, jax.Array], jax.Array]  # logits and targets (B, K) to the mean
CLOSE = 1e-7  # the least 1 - p of the focal loss, whose gradient is not finite at 0


def sigmoid_losses(
  logits: jax.Array, targets: jax.Array, weights: jax.Array | float = 1.0
) -> jax.Array:
  """Returns the weighted sum over the classes of the binary cross-entropy of each example, (B,).

  Each class is decided by itself, so the targets need not sum to 1. The weights are (B, K), or one
  number.
  """
  right, wrong = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
  return -jnp.sum(weights * (targets * right + (1 - targets) * wrong), axis=-1)


def focal_losses(logits: jax.Array, targets: jax.Array, gamma: float) -> jax.Array:
  """Returns -Σ targets (1 - p)^gamma log p with p = softmax(logits) for each example, (B,).

  This is the focal loss of Lin et al. 2017, equation 4, for several classes; examples that are
  almost right count little.
  """
  log_p = jax.nn.log_softmax(logits)
  wrong = jnp.maximum(-jnp.expm1(log_p), CLOSE)
  return -jnp.sum(targets * wrong**gamma * log_p, axis=-1)


LOSSES: Mapping[str, Callable[..., jax.Array]] = {
  "softmax": optax.softmax_cross_entropy,
  "sigmoid": sigmoid_losses,
  "focal": focal_losses,
}


def make_loss(
  name: str, focal_gamma: float, class_weights: Sequence[float] | None, smoothing: float = 0.0
) -> MeanLoss:
  """Returns a loss: a function of logits and targets, (B, K) each, that averages over the batch.

  Args:
    name: A name of `LOSSES`.
    focal_gamma: The exponent of the focal loss.
    class_weights: The weight of each class's examples. The weight of a mixed example is the mixture
      of its classes' weights. None weights all examples equally.
    smoothing: The label smoothing of the targets, which does not change the weights.
  """
  if name == "softmax" and class_weights is None:
    return cross_entropy
  losses = LOSSES[name]
  if name == "focal":
    losses = functools.partial(focal_losses, gamma=focal_gamma)

  def mean_loss(logits: jax.Array, targets: jax.Array, weights: Any = None) -> jax.Array:
    loss = losses(logits, targets)
    if weights is not None:
      labels = unsmooth_targets(targets, smoothing, 1 / targets.shape[-1])
      loss = loss * (labels @ jnp.asarray(weights, targets.dtype))
    return jnp.mean(loss)

  return _weighted(mean_loss, class_weights)


def make_multilabel_loss(class_weights: Sequence[float] | None, smoothing: float) -> MeanLoss:
  """Returns the mean over the batch of the sum of binary cross-entropies, for (B, K) logits.

  Args:
    class_weights: The weight of each class's decision for the examples that have the class; for the
      others it is 1. Mixed examples have the mixture of the two. None weights all equally.
    smoothing: The label smoothing of the targets, which does not change the weights.
  """

  def mean_loss(logits: jax.Array, targets: jax.Array, weights: Any = None) -> jax.Array:
    decisions: jax.Array | float = 1.0
    if weights is not None:
      labels = unsmooth_targets(targets, smoothing, 1 / 2)
      decisions = 1 + labels * (jnp.asarray(weights, targets.dtype) - 1)
    return jnp.mean(sigmoid_losses(logits, targets, decisions))

  return _weighted(mean_loss, class_weights)


def _weighted(mean_loss: Callable[..., jax.Array], weights: Sequence[float] | None) -> MeanLoss:
  """Returns a loss whose weights of classes can be arguments of a program, see `Task.measured`."""
  return Partial(mean_loss, weights=None if weights is None else np.asarray(weights, np.float32))


def find_class_weights(
  weights: str | Sequence[float], class_names: Sequence[str], labels: np.ndarray | None
) -> str | tuple[float, ...]:
  """Returns `task.class_weights` as numbers.

  Args:
    weights: The config's value: "balanced" or a number for each class. For a class with n_c of n
      examples, "balanced" is n / (K n_c), or (n - n_c) / n_c if examples have several classes.
    class_names: The names of the K classes.
    labels: The labels of the training examples, (n,), or (n, K) with 1 for each class. If they are
      None, because the data are not known, "balanced" is returned unchanged.

  Raises:
    ConfigError: There is not one number for each class, or a "balanced" class has no example.
  """
  count = len(class_names)
  if not isinstance(weights, str):
    if len(weights) != count:
      raise ConfigError(f"task.class_weights={weights!r:.200} must have {count} numbers.")
    return tuple(weights)
  if labels is None:
    return weights
  has_one = np.ndim(labels) == 1
  counts = np.bincount(labels[labels >= 0], minlength=count) if has_one else (labels > 0).sum(0)
  if not counts.all():
    name = class_names[int(np.argmin(counts))]
    raise ConfigError(
      f"task.class_weights={weights!r}: train has no example of the class {name!r}; give a number"
      " for each class."
    )
  return tuple((counts.sum() / (count * counts) if has_one else len(labels) / counts - 1).tolist())
