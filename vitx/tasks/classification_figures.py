"""Metrics of classifiers, for augmented batches in training and for splits in evaluation."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.tasks.figures import Figure, Figures

ECE_BINS = 15
TOP = 5  # The k of top-k accuracy, which is shown for more than k classes.
FIGURES = (
  Figure("top1", "max", "{:.2%}", "top-1"),
  Figure("top5", "max", "{:.2%}", "top-5"),
  Figure("balanced_accuracy", "max", "{:.2%}", place="table"),
  Figure("precision", "max", "{:.2%}", "precision (macro)", place="table"),
  Figure("recall", "max", "{:.2%}", "recall (macro)", place="table"),
  Figure("f1", "max", "{:.2%}", "F1 (macro)", place="table"),
  Figure("nll", "min", "{:.4f}", "NLL (nats)", "nll"),
  Figure("ece", "min", "{:.4f}", "calibration error", place="table"),
  Figure("coverage", None, "{:.2%}", "coverage of sets", place="table"),
  Figure("set_size", None, "{:.2f}", "classes in a set", place="table"),
  Figure("empty_sets", None, "{:.2%}", place="table"),
  Figure("class_top1", None, "{:.2%}", "top-1", place="class"),
  Figure("class_precision", None, "{:.2%}", "precision", place="class"),
  Figure("class_f1", None, "{:.2%}", "F1", place="class"),
  Figure("class_coverage", None, "{:.2%}", "coverage", place="class"),
  Figure("class_set_size", None, "{:.2f}", "set size", place="class"),
)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns the mean over the batch of -targets · log softmax(logits), both (B, K)."""
  return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1))


def agreement(logits: jax.Array, targets: jax.Array) -> jax.Array:
  """Returns the accuracy on an augmented batch, from logits and targets (B, K).

  The class of a mixed image is the class of its larger part.
  """
  right = jnp.argmax(logits, axis=-1) == jnp.argmax(targets, axis=-1)
  return jnp.mean(right, dtype=jnp.float32)


def classification_sums(
  logits: jax.Array, labels: jax.Array, mask: jax.Array, num_classes: int
) -> dict[str, dict[str, jax.Array]]:
  """Computes the sums over the unmasked examples that `summarize_classification` needs.

  An example with a logit that is not finite is wrong for every class, and its log-likelihood is
  not finite.

  Args:
    logits: The logits, (B, K) float32.
    labels: The class numbers, (B,) integers.
    mask: A boolean mask (B,), False for padding.
    num_classes: The number of classes K.

  Returns:
    A dict of the dicts `sums` and `rows`. `sums` has the scalars count, nll, top1 and top5;
    class_count and class_top1, (K,); and bin_count, bin_confidence and bin_top1, (15,), for equal
    bins of the highest probability. `rows` has the probabilities and logits, (B, K).
  """
  log_probabilities = jax.nn.log_softmax(logits)
  log_p = jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)
  # The rank counts classes that score higher; in a tie the lower class number wins, as in argmax.
  higher = log_probabilities > log_p
  tied_before = (log_probabilities == log_p) & (jnp.arange(num_classes)[None] < labels[:, None])
  rank = jnp.sum(higher | tied_before, axis=1)
  finite = jnp.all(jnp.isfinite(logits), axis=1)  # NaN compares as neither higher nor tied
  log_p = jnp.where(finite, log_p[:, 0], jnp.nan)
  weight = mask.astype(jnp.float32)
  top1 = jnp.where(finite & (rank == 0), weight, 0.0)
  confidence = jnp.exp(jnp.max(log_probabilities, axis=1))
  bins = jnp.clip(jnp.ceil(confidence * ECE_BINS).astype(jnp.int32) - 1, 0, ECE_BINS - 1)
  sums = {
    "count": jnp.sum(weight),
    "nll": -jnp.sum(jnp.where(mask, log_p, 0.0)),
    "top1": jnp.sum(top1),
    "top5": jnp.sum(jnp.where(finite & (rank < TOP), weight, 0.0)),
    "class_count": jnp.bincount(labels, weight, length=num_classes),
    "class_top1": jnp.bincount(labels, top1, length=num_classes),
    "bin_count": jnp.bincount(bins, weight, length=ECE_BINS),
    "bin_confidence": jnp.bincount(bins, jnp.where(mask, confidence, 0.0), length=ECE_BINS),
    "bin_top1": jnp.bincount(bins, top1, length=ECE_BINS),
  }
  return {"sums": sums, "rows": {"probabilities": jnp.exp(log_probabilities), "logits": logits}}


def summarize_classification(sums: Mapping[str, Any]) -> Figures:
  """Turns the totals of `classification_sums` over a split into metrics.

  Returns:
    A dict with examples; top1 and top5 in 0..1; nll in nats; ece, the expected calibration error
    over 15 equal bins (Guo et al. 2017, equation 3); and class_top1, the accuracy of each class,
    None for a class without examples.
  """
  count = float(sums["count"])
  gap = np.abs(np.asarray(sums["bin_top1"]) - np.asarray(sums["bin_confidence"]))
  return {
    "examples": int(count),
    "top1": float(sums["top1"]) / count,
    "top5": float(sums["top5"]) / count,
    "nll": float(sums["nll"]) / count,
    "ece": float(gap.sum()) / count,
    "class_top1": [
      float(hits) / float(n) if n else None
      for hits, n in zip(sums["class_top1"], sums["class_count"], strict=True)
    ],
  }


def probability_columns(class_names: Iterable[str], probabilities: np.ndarray) -> dict[str, Any]:
  """Returns the columns "p(NAME)" of a table of predictions, for probabilities (B, K)."""
  # str keeps the digits that distinguish a float32 from its neighbors, and no others.
  columns = zip(class_names, probabilities.T, strict=True)
  return {f"p({name})": [float(str(p)) for p in column] for name, column in columns}
