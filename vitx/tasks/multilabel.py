"""Classification of images that have any number of classes; each class is decided by itself."""

import dataclasses
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from vitx.config.checks import NonNegative, Probability
from vitx.config.errors import listing
from vitx.config.fields import RunSettings
from vitx.data.dataset import ArraySpec
from vitx.tasks.classification import Classification, resolve_class_weights, resolve_images
from vitx.tasks.classification_figures import probability_columns
from vitx.tasks.classification_losses import make_multilabel_loss
from vitx.tasks.figures import Figure, Figures

SHOWN = 10  # a warning names this many classes


@dataclasses.dataclass(frozen=True)
class MultiLabel(Classification):
  """Decides for each of K classes whether an image has it, by binary cross-entropies.

  The data have the array `labels`, float32 (K,), 1 for each class of the image. A class is
  predicted if its probability is above 1/2.
  """

  targets: ClassVar[tuple[str, ...]] = ("labels",)
  answer: ClassVar[ArraySpec] = ArraySpec((None,), "float32")
  figures = (
    Figure("map", "max", "{:.2%}", "mAP"),  # the mean over the classes of the average precision
    Figure("f1", "max", "{:.2%}", "F1 (all decisions)", "F1"),
    Figure("exact", "max", "{:.2%}", "all classes right", place="table"),
    Figure("nll", "min", "{:.4f}", "NLL (nats)", "nll"),
    Figure("right", None, "{:.1%}"),  # of augmented batches
    Figure("class_ap", None, "{:.2%}", "AP", place="class"),
  )

  @classmethod
  def resolve(cls, config, source):
    """Sets the fields that follow from the data, and warns of classes that train never has.

    The fields are the number of classes, sizes, channels, pixel statistics and weights of classes.
    """
    classes = getattr(source, "info", source).class_names or ()
    resolve_images(config, source, {"labels": ("float32", 1)}, len(classes))
    labels = getattr(getattr(source, "train", None), "labels", None)
    unlearned = [] if labels is None else [classes[k] for k in np.flatnonzero(~labels.any(axis=0))]
    if unlearned:
      logging.warning(
        "%s: train has no example of %d of the %d classes (%s); nothing is learned about them, but"
        " the mean average precision counts them where they occur",
        *(config.data.source, len(unlearned), len(classes), listing(unlearned[:SHOWN])),
      )
    resolve_class_weights(config, source)

  @classmethod
  def from_config(  # type: ignore[override]  # it has only one loss
    cls,
    config: RunSettings,
    *,
    label_smoothing: Probability = 0.0,
    class_weights: Literal["balanced"] | tuple[NonNegative, ...] | None = None,
  ) -> Self:
    """Returns the task of resolved settings.

    Args:
      config: The resolved settings.
      label_smoothing: The smoothing e; targets are (1 - e) labels + e / 2.
      class_weights: The weight of each class's cross-entropy for the images that have the class, in
        the order of the classes, where other images have the weight 1; "balanced" is (n - n_c) /
        n_c for a class of n_c of the n training images; None weights all equally.
    """
    task = super().from_config(config, label_smoothing=label_smoothing)
    weights = None if class_weights == "balanced" else class_weights  # a plan has no data
    return dataclasses.replace(task, mean_loss=make_multilabel_loss(weights, label_smoothing))

  def metrics(self, outputs, targets):
    """Returns the share of right decisions on an augmented batch."""
    return {"right": jnp.mean((outputs > 0) == (targets > 0.5), dtype=jnp.float32)}

  def evaluate(self, params, state, constants, batch):
    """Returns the probabilities and logits (B, K) of a batch, and gathers logits and labels."""
    inputs = self.model_inputs(batch)
    logits: Any = self.model.apply({"params": params, **state}, inputs, train=False)
    return {
      "sums": {"count": jnp.sum(batch["mask"], dtype=jnp.float32)},
      "gathered": {"logits": logits, "labels": batch["labels"]},
      "rows": {"probabilities": jax.nn.sigmoid(logits), "logits": logits},
    }

  def summarize(self, sums):
    """Returns the dict of `summarize_multilabel`, such as the mean average precision `map`."""
    return summarize_multilabel(sums["logits"], sums["labels"])

  def predictions(self, class_names, batch, rows):
    """Returns the columns labels, prediction and "p(NAME)", the probability of each class."""
    names, p = np.array(class_names, object), rows["probabilities"]
    classes = {"labels": batch["labels"] > 0.5, "prediction": p > 0.5}
    columns = {head: [";".join(names[row]) for row in has] for head, has in classes.items()}
    return columns | probability_columns(names, p)


def summarize_multilabel(logits: np.ndarray, labels: np.ndarray) -> Figures:
  """Computes the metrics of a split.

  An example with a logit that is not finite is wrong for every class, and its log-likelihood is
  not finite.

  Args:
    logits: The logits of all examples, (n, K).
    labels: The labels, (n, K), 1 for each class of an example, otherwise 0.

  Returns:
    A dict with examples; class_ap, the average precision of each class, None for a class that no
    example has; map, the mean of class_ap without None, or 0 if all are None; f1 over all
    decisions; exact, the share of examples for which every decision is right; and nll in nats.
  """
  known, finite = labels > 0.5, np.isfinite(logits).all(axis=1, keepdims=True)
  scores = np.where(finite, logits, -np.inf).astype(np.float64)
  chosen = scores > 0
  exact = np.all(chosen == known, axis=1) & finite[:, 0]
  losses = np.where(finite, np.logaddexp(0, np.where(known, -scores, scores)), np.nan)
  values = [average_precision(*pair) for pair in zip(scores.T, known.T, strict=True)]
  occurring = [value for value in values if value is not None]
  decisions = int(chosen.sum() + known.sum())
  return {
    "examples": len(labels),
    "map": float(np.mean(occurring)) if occurring else 0.0,
    "f1": 2 * float((chosen & known).sum()) / decisions if decisions else 1.0,
    "exact": float(exact.mean()),
    "nll": float(losses.sum(axis=1).mean()),
    "class_ap": values,
  }


def average_precision(scores: np.ndarray, known: np.ndarray) -> float | None:
  """Returns the average precision of a class, or None if no example has the class.

  The average precision is the sum over thresholds of the precision times the increase of recall.
  Equal scores share a threshold, as in scikit-learn.

  Args:
    scores: The score of each example, (n,).
    known: Whether each example has the class, bool (n,).
  """
  if not known.any():
    return None
  order = np.argsort(-scores)
  ordered, hits = scores[order], np.cumsum(known[order])
  last = np.append(ordered[1:] != ordered[:-1], True)  # the last example of each threshold
  precision = hits[last] / (np.flatnonzero(last) + 1)
  return float((precision * np.diff(hits[last], prepend=0)).sum() / hits[-1])
