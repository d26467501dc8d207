"""Tasks: what is learned, how a loss and its metrics are computed from a batch.

A task is made of pure functions on one device's share of a batch. It knows neither devices nor the
optimizer. Variables are a dict of collections; "params" is learned, the others (batch statistics,
fixed features) are state.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.ops.dropout import examples_at

Batch = dict[str, jax.Array]
ECE_BINS = 15


class Task(Protocol):
  """What the training step and the evaluation ask of a task."""

  def init(self, key: jax.Array, batch: Batch) -> dict[str, Any]:
    """Returns all variables."""
    ...

  def loss(
    self, params: Any, state: Any, batch: Batch, key: jax.Array
  ) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]:
    """Returns the mean loss over the batch, the new state and scalar metrics, means likewise."""
    ...

  def evaluate(self, params: Any, state: Any, batch: Batch) -> dict[str, dict[str, jax.Array]]:
    """Returns `sums` (over the unmasked examples) and `rows` (one entry per example)."""
    ...


@dataclasses.dataclass(frozen=True)
class Classification:
  """Cross-entropy against (mixed, smoothed) class targets.

  Attributes:
    model: called as `model.apply(variables, images, train=...)`, returns logits (B, K).
    augment: `(key, index, images, labels) -> (images, targets)`, for training.
    preprocess: `images -> images`, for evaluation.
    num_classes: K.
  """

  model: nn.Module
  augment: Callable
  preprocess: Callable
  num_classes: int

  def init(self, key: jax.Array, batch: Batch) -> dict[str, Any]:
    images = self.preprocess(batch["image"][:1])
    return dict(self.model.init({"params": key, "dropout": key}, images, train=False))

  def loss(self, params, state, batch, key):
    """See `Task.loss`; `batch`: image (B, S, S, C) uint8, label (B,), index (B,) (global)."""
    images, targets = self.augment(
      jax.random.fold_in(key, 0), batch["index"], batch["image"], batch["label"]
    )
    with examples_at(batch["index"]):
      logits, new_state = self.model.apply(
        {"params": params, **state},
        images,
        train=True,
        # One graph for all examples and devices: "graph" is folded with neither.
        rngs={"dropout": jax.random.fold_in(key, 1), "graph": jax.random.fold_in(key, 2)},
        mutable=list(state),
      )
    loss = -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1))
    # Of the augmented batch, as it is learned from; a mixed image counts as its larger part.
    right = jnp.argmax(logits, axis=-1) == jnp.argmax(targets, axis=-1)
    return loss, (new_state, {"top1": jnp.mean(right, dtype=jnp.float32)})

  def evaluate(self, params, state, batch):
    """See `Task.evaluate`. `batch` also has mask (B,), True for examples that count."""
    logits: Any = self.model.apply(
      {"params": params, **state}, self.preprocess(batch["image"]), train=False
    )
    return classification_sums(logits, batch["label"], batch["mask"], self.num_classes)


def classification_sums(
  logits: jax.Array, labels: jax.Array, mask: jax.Array, num_classes: int
) -> dict[str, dict[str, jax.Array]]:
  """What `metrics.summarize` needs, summed over the unmasked examples.

  Args:
    logits: (B, K) float32.
    labels: (B,) integers.
    mask: (B,) boolean.
    num_classes: K.

  Returns:
    sums: count, nll, top1, top5 (scalars); class_count, class_top1 (K,); bin_count, bin_confidence,
    bin_top1 (15 equal bins of the top probability). rows: probabilities (B, K).
  """
  log_probabilities = jax.nn.log_softmax(logits)
  own = jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)
  # The rank counts classes that score higher; a tie goes to the lower class number, as in argmax.
  higher = log_probabilities > own
  tied_before = (log_probabilities == own) & (jnp.arange(num_classes)[None] < labels[:, None])
  rank = jnp.sum(higher | tied_before, axis=1)
  weight = mask.astype(jnp.float32)
  top1 = jnp.where(rank == 0, weight, 0.0)
  confidence = jnp.exp(jnp.max(log_probabilities, axis=1))
  bins = jnp.clip(jnp.ceil(confidence * ECE_BINS).astype(jnp.int32) - 1, 0, ECE_BINS - 1)

  def per(index: jax.Array, value: jax.Array, length: int) -> jax.Array:
    return jnp.zeros(length, jnp.float32).at[index].add(value)

  sums = {
    "count": jnp.sum(weight),
    "nll": -jnp.sum(weight * own[:, 0]),
    "top1": jnp.sum(top1),
    "top5": jnp.sum(jnp.where(rank < 5, weight, 0.0)),
    "class_count": per(labels, weight, num_classes),
    "class_top1": per(labels, top1, num_classes),
    "bin_count": per(bins, weight, ECE_BINS),
    "bin_confidence": per(bins, weight * confidence, ECE_BINS),
    "bin_top1": per(bins, top1, ECE_BINS),
  }
  return {"sums": sums, "rows": {"probabilities": jnp.exp(log_probabilities)}}


TASKS = {"classification": Classification}
