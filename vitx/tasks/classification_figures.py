"""Metrics of classifiers, for augmented batches in training and for splits in evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.config.errors import escape
from vitx.tasks.base import Figures

ECE_BINS = 15
TOP = 5  # The k of top-k accuracy, which is shown for more than k classes.
# The metrics of a table: key, name and format. Percentages come from metrics in 0..1.
SHOWN = (
  ("top1", "top-1", ".2%"),
  ("top5", "top-5", ".2%"),
  ("balanced_accuracy", "balanced accuracy", ".2%"),
  ("precision", "precision (macro)", ".2%"),
  ("recall", "recall (macro)", ".2%"),
  ("f1", "F1 (macro)", ".2%"),
  ("nll", "NLL (nats)", ".4f"),
  ("ece", "calibration error", ".4f"),
)
BY_CLASS = (("class_top1", "top-1"), ("class_precision", "precision"), ("class_f1", "F1"))
CONFUSIONS = 5  # The most frequent confusions in a table.
MOST, WORST = 20, 10  # A table has all of up to 20 classes, and the 10 worst of more classes.


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
  own = jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)
  # The rank counts classes that score higher; in a tie the lower class number wins, as in argmax.
  higher = log_probabilities > own
  tied_before = (log_probabilities == own) & (jnp.arange(num_classes)[None] < labels[:, None])
  rank = jnp.sum(higher | tied_before, axis=1)
  finite = jnp.all(jnp.isfinite(logits), axis=1)  # NaN compares as neither higher nor tied
  own = jnp.where(finite, own[:, 0], jnp.nan)
  weight = mask.astype(jnp.float32)
  top1 = jnp.where(finite & (rank == 0), weight, 0.0)
  confidence = jnp.exp(jnp.max(log_probabilities, axis=1))
  bins = jnp.clip(jnp.ceil(confidence * ECE_BINS).astype(jnp.int32) - 1, 0, ECE_BINS - 1)
  sums = {
    "count": jnp.sum(weight),
    "nll": -jnp.sum(jnp.where(mask, own, 0.0)),
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


def table_lines(figures: Figures, class_names: Sequence[str]) -> list[str]:
  """Returns lines of text: the metrics with intervals, frequent confusions, and metrics by class.

  Args:
    figures: The metrics of `summarize_classification`, with or without those of `vitx.evaluate`.
    class_names: The names of the classes.
  """
  intervals = figures.get("intervals", {})
  lines = []
  for key, name, form in shown_figures(figures, len(class_names)):
    ends = intervals.get(key)
    interval = f"   {ends[0]:{form}} to {ends[1]:{form}}" if ends else ""
    lines.append(f"  {name:<20}{figures[key]:>9{form}}{interval}")
  if intervals:
    lines.append(f"  95 % intervals over examples, {figures['resamples']:,} bootstrap resamples")
  lines += _calibration_lines(figures.get("calibration"))
  for count, true, predicted in list_confusions(figures.get("confusion", ()))[:CONFUSIONS]:
    names = (escape(class_names[each], line=True) for each in (true, predicted))
    lines.append(f"  {count:>4} x {' as '.join(names)}")
  columns = [(key, name) for key, name in BY_CLASS if key in figures]
  numbers, note = choose_classes(figures["class_top1"])
  lines += note
  lines.append("  by class".ljust(22) + "".join(f"{name:>11}" for _, name in columns))
  for number in numbers:
    name, values = class_names[number], [figures[key][number] for key, _ in columns]
    cells = ["no examples" if values[0] is None else f"{values[0]:.2%}"]
    cells += ["" if value is None else f"{value:.2%}" for value in values[1:]]
    lines.append(f"    {escape(name, line=True):<18}{''.join(f'{c:>11}' for c in cells)}".rstrip())
  return lines


def choose_classes(values: Sequence[float | None]) -> tuple[Sequence[int], list[str]]:
  """Chooses the classes that a printed table shows, by a metric of each class.

  Returns:
    The indices of all classes, or of those with the lowest values if there are many; and then a
    list with a line that says so, otherwise [].
  """
  if len(values) <= MOST:
    return range(len(values)), []
  known = [number for number, value in enumerate(values) if value is not None]
  worst = sorted(known, key=lambda number: values[number] or 0.0)[:WORST]
  return worst, [f"  the {len(worst)} worst of {len(values):,} classes; --json writes all"]


def shown_figures(figures: Figures, classes: int) -> list[tuple[str, str, str]]:
  """Returns the rows of `SHOWN` whose metrics exist; top-5 needs more than 5 classes."""
  return [row for row in SHOWN if row[0] in figures and (row[0] != "top5" or classes > TOP)]


def list_confusions(confusion: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
  """Returns (count, true class, predicted class) of each kind of mistake, most frequent first."""
  counts = np.array(confusion)
  if not counts.size:
    return []
  np.fill_diagonal(counts, 0)
  order = np.argsort(-counts, axis=None, kind="stable")[: np.count_nonzero(counts)]
  rows, columns = np.unravel_index(order, counts.shape)
  return [(int(counts[i, j]), int(i), int(j)) for i, j in zip(rows, columns, strict=True)]


def describe_fit(calibration: Mapping[str, Any]) -> str:
  """Returns the temperature in `calibration` of `vitx.evaluate`, or why there is none, as text."""
  on = f"{calibration['fitted_examples']:,} examples of validation"
  if calibration["temperature"] is None:
    return f"none: {on} with {calibration['fitted_mistakes']:,} mistakes do not determine it"
  return f"{calibration['temperature']:.4f}, fitted on {on}"


def _calibration_lines(calibration: Mapping[str, Any] | None) -> list[str]:
  if not calibration:
    return []
  lines = [f"  temperature         {describe_fit(calibration)}"]
  for key, name in (("nll", "NLL"), ("ece", "calibration error")):
    after = f"   with it {calibration['after'][key]:.4f}" if "after" in calibration else ""
    lines.append(f"    {name:<18}{calibration['before'][key]:>9.4f}{after}")
  return lines
