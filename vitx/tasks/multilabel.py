"""Classification of images that have any number of classes; each class is decided by itself."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from vitx.config.checks import Probability
from vitx.config.errors import escape
from vitx.data.dataset import ArraySpec
from vitx.tasks.base import Figures
from vitx.tasks.classification import Classification, resolve_images
from vitx.tasks.classification_losses import make_loss, sigmoid_losses

# Average precision is computed from histograms of the logits. Logits in one bin count as equal.
BINS, LARGEST = 2400, 12.0


@dataclasses.dataclass(frozen=True)
class MultiLabel(Classification):
  """Decides for each of K classes whether an image has it, by binary cross-entropies.

  The data have the array `labels`, float32 (K,), 1 for each class of the image. A class is
  predicted if its probability is above 1/2.
  """

  primary: ClassVar[str] = "map"  # the mean over the classes of the average precision
  targets: ClassVar[tuple[str, ...]] = ("labels",)

  @classmethod
  def resolve(cls, config, source):
    """Sets the number of classes, sizes, channels and pixel statistics according to the data."""
    classes = getattr(source, "info", source).class_names or ()
    resolve_images(config, source, {"labels": ("float32", 1)}, len(classes))

  @classmethod
  def answer_arrays(cls, classes):
    """Returns the shape and dtype of `labels`, float32 (K,)."""
    return {"labels": ArraySpec((classes,), "float32")}

  @classmethod
  def from_config(  # type: ignore[override]  # its only loss takes no weights
    cls, config: ConfigDict, *, label_smoothing: Probability = 0.0
  ) -> Self:
    """Returns the task of a resolved config.

    Args:
      config: The resolved config.
      label_smoothing: The smoothing e; targets are (1 - e) labels + e / 2.
    """
    task = super().from_config(config, label_smoothing=label_smoothing)
    return dataclasses.replace(task, mean_loss=make_loss("sigmoid", 0.0, None))

  def metrics(self, outputs, targets):
    """Returns the share of right decisions on an augmented batch."""
    return {"right": jnp.mean((outputs > 0) == (targets > 0.5), dtype=jnp.float32)}

  def evaluate(self, params, state, constants, batch):
    """Returns the sums for `summarize`, and the probabilities and logits (B, K) of a batch."""
    inputs = self.model_inputs(batch)
    logits: Any = self.model.apply({"params": params, **state}, inputs, train=False)
    return multilabel_sums(logits, batch["labels"], batch["mask"])

  def summarize(self, sums):
    """Returns the dict of `summarize_multilabel`, such as the mean average precision `map`."""
    return summarize_multilabel(sums)

  def describe(self, figures):
    """Returns mean average precision and F1 in percent, and the loss in nats."""
    return f"mAP {_percent(figures['map'])}  F1 {figures['f1']:.2%}  nll {figures['nll']:.4f}"

  def describe_step(self, metrics):
    """Returns the share of right decisions on the augmented batches in percent."""
    return f"right {metrics['right']:.1%}"

  def table(self, figures, data):
    """Returns the metrics in lines of text, with the average precision of each class."""
    lines = [
      f"  mAP                 {_percent(figures['map']):>9}",
      f"  F1 (all decisions)  {figures['f1']:>9.2%}",
      f"  all classes right   {figures['exact']:>9.2%}",
      f"  NLL (nats)          {figures['nll']:>9.4f}",
      "  average precision by class",
    ]
    for name, value in zip(data["class_names"], figures["class_ap"], strict=True):
      lines.append(f"    {escape(name, line=True):<18}{_percent(value):>9}")
    return "\n".join(lines)

  def prediction_columns(self, data):
    """Returns the headings "labels", "prediction" and "p(NAME)", the probability of each class."""
    return ["labels", "prediction", *(f"p({name})" for name in data["class_names"])]

  def prediction_rows(self, data, batch, rows) -> Iterable[list[Any]]:
    """Yields the labels, the predicted classes and the probabilities of each example."""
    names = np.array(data["class_names"], object)
    for labels, p in zip(batch["labels"], rows["probabilities"], strict=True):
      yield [";".join(names[labels > 0.5]), ";".join(names[p > 0.5]), *map(str, p)]


def multilabel_sums(
  logits: jax.Array, labels: jax.Array, mask: jax.Array
) -> dict[str, dict[str, jax.Array]]:
  """Computes the sums over the unmasked examples that `summarize_multilabel` needs.

  Args:
    logits: The logits, (B, K) float32.
    labels: The labels, (B, K) float32, 1 for each class of an example, otherwise 0.
    mask: A boolean mask (B,), False for padding.

  Returns:
    A dict of the dicts `sums` and `rows`. `sums` has the scalars count, nll and exact; predicted
    and present, the numbers of predicted and of present classes; right, the number of classes that
    are predicted and present; and positives and negatives, histograms (K, bins) of the logits of
    present and of absent classes. `rows` has the probabilities and logits, (B, K).
  """
  finite = jnp.isfinite(logits).all(axis=1, keepdims=True)
  weight = mask.astype(jnp.float32)
  chosen = (logits > 0) & finite
  known = labels > 0.5
  clipped = jnp.clip(jnp.where(finite, logits, -LARGEST), -LARGEST, LARGEST)
  place = ((clipped + LARGEST) * (BINS / (2 * LARGEST))).astype(jnp.int32)
  place = jnp.minimum(place, BINS - 1)

  def histogram(value: jax.Array) -> jax.Array:
    rows = jnp.broadcast_to(jnp.arange(logits.shape[1])[None], logits.shape)
    counts = jnp.zeros((logits.shape[1], BINS), jnp.float32)
    return counts.at[rows, place].add(jnp.where(value, weight[:, None], 0.0))

  def total(value: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(value, weight[:, None], 0.0))

  exact = jnp.all(chosen == known, axis=1) & finite[:, 0]
  nll = jnp.where(finite[:, 0], sigmoid_losses(logits, labels), jnp.nan)
  sums = {
    "count": jnp.sum(weight),
    "nll": jnp.sum(jnp.where(mask, nll, 0.0)),
    "exact": jnp.sum(jnp.where(exact, weight, 0.0)),
    "right": total(chosen & known),
    "predicted": total(chosen),
    "present": total(known),
    "positives": histogram(known),
    "negatives": histogram(~known),
  }
  return {"sums": sums, "rows": {"probabilities": jax.nn.sigmoid(logits), "logits": logits}}


def summarize_multilabel(sums: Mapping[str, Any]) -> Figures:
  """Turns the totals of `multilabel_sums` over a split into metrics.

  Returns:
    A dict with examples; class_ap, the average precision of each class, None for a class that no
    example has; map, the mean of class_ap without None, or 0 if all are None; f1 over all
    decisions; exact, the share of examples for which every decision is right; and nll in nats.
  """
  count = float(sums["count"])
  pairs = zip(np.asarray(sums["positives"]), np.asarray(sums["negatives"]), strict=True)
  values = [average_precision(*pair) for pair in pairs]
  known = [value for value in values if value is not None]
  decisions = float(sums["predicted"]) + float(sums["present"])
  return {
    "examples": int(count),
    "map": float(np.mean(known)) if known else 0.0,
    "f1": 2 * float(sums["right"]) / decisions if decisions else 1.0,
    "exact": float(sums["exact"]) / count,
    "nll": float(sums["nll"]) / count,
    "class_ap": values,
  }


def average_precision(positives: np.ndarray, negatives: np.ndarray) -> float | None:
  """Returns the average precision of a class, or None if the class has no positives.

  The average precision is the sum over thresholds of the precision times the increase of recall.
  Scores in one bin count as equal. Equal scores share a threshold, as in scikit-learn.

  Args:
    positives: The histogram of the scores of examples that have the class, (bins,), from low to
      high scores.
    negatives: The histogram of the scores of the other examples, (bins,).
  """
  if not positives.sum():
    return None
  own, others = positives[::-1].astype(np.float64), negatives[::-1].astype(np.float64)
  found = np.cumsum(own)
  precision = found / np.maximum(found + np.cumsum(others), 1)
  return float((precision * own).sum() / found[-1])


def _percent(value: float | None) -> str:
  return "no examples" if value is None else f"{value:.2%}"
