"""Metrics of a classifier's predictions: confusion, calibration, and bootstrap intervals.

NumPy computes everything on the host from the labels and logits of a split's examples. Every metric
is a function of sums over the examples. So a bootstrap resample is a vector of weights of the
examples, and one product of matrices computes the sums of many resamples.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from scipy.optimize import brentq
from scipy.special import log_softmax, softmax

from vitx.analysis.statistics import divide

RESAMPLES, SEED = 1_000, 0  # The number of bootstrap resamples, and the seed of their draws.
PERCENTILES = (2.5, 97.5)  # The ends of a 95 % interval.
BINS = 15  # The number of equal bins of the confidence, as in training.
TOP = 5
HOTTEST = 100.0  # A temperature lies between 1 / HOTTEST and HOTTEST.
LEAST = 30  # The fewest examples to which a temperature is fitted.
AT_ONCE = 2**22  # The most weights of examples in memory at once.


@dataclasses.dataclass(frozen=True)
class Predictions:
  """A classifier's predictions for n examples, without the probabilities of all K classes.

  Attributes:
    numbers: The index of each example in its split, int (n,).
    labels: The index of the true class, int (n,).
    classes: The index of the most probable class, int (n,); -1 if a logit is not finite.
    confidence: The highest probability, float64 (n,).
    likelihood: The log-probability of the true class, float64 (n,).
    ranks: The number of classes that score higher than the true class, int (n,). In a tie the class
      with the lower index scores higher.
  """

  numbers: np.ndarray
  labels: np.ndarray
  classes: np.ndarray
  confidence: np.ndarray
  likelihood: np.ndarray
  ranks: np.ndarray

  @property
  def right(self) -> np.ndarray:
    """Returns whether each prediction is the true class, bool (n,)."""
    return self.classes == self.labels

  @property
  def mistakes(self) -> np.ndarray:
    """Returns the indices of the wrong predictions, the most confident one first.

    Examples with a logit that is not finite are left out.
    """
    order = np.argsort(-self.confidence, kind="stable")
    return order[~self.right[order] & (self.classes[order] >= 0)]

  @property
  def least_certain(self) -> np.ndarray:
    """Returns the indices of all examples, the one with the lowest confidence first.

    Examples with a logit that is not finite are left out.
    """
    order = np.argsort(self.confidence, kind="stable")
    return order[self.classes[order] >= 0]


def read_logits(numbers: np.ndarray, labels: np.ndarray, logits: np.ndarray) -> Predictions:
  """Returns the predictions that follow from a classifier's logits.

  Args:
    numbers: The index of each example in its split, (n,).
    labels: The index of each example's true class, (n,).
    logits: The logits, (n, K).
  """
  logs = log_softmax(np.asarray(logits, np.float64), axis=1)
  label_logs = np.take_along_axis(logs, labels[:, None], axis=1)
  before = (logs == label_logs) & (np.arange(logs.shape[1])[None] < labels[:, None])
  finite = np.isfinite(logits).all(axis=1)
  return Predictions(
    numbers=np.asarray(numbers, np.int64),
    labels=np.asarray(labels, np.int64),
    classes=np.where(finite, logs.argmax(axis=1), -1),
    confidence=np.where(finite, np.exp(logs.max(axis=1)), 0.0),
    likelihood=np.where(finite, label_logs[:, 0], np.nan),
    ranks=np.where(finite, ((logs > label_logs) | before).sum(axis=1), logs.shape[1]),
  )


def join_predictions(parts: Sequence[Predictions]) -> Predictions:
  """Concatenates the predictions of several batches."""
  names = [field.name for field in dataclasses.fields(Predictions)]
  return Predictions(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


def summarize(predictions: Predictions, classes: int, resamples: int = RESAMPLES) -> dict[str, Any]:
  """Computes the metrics of a classifier's predictions, with bootstrap intervals over the examples.

  By scikit-learn's conventions, a ratio whose denominator is 0 is 0, and a macro average is over
  the classes that occur as a label or as a prediction. The balanced accuracy averages over the
  classes that have examples.

  Args:
    predictions: The predictions for n examples.
    classes: The number of classes, K.
    resamples: The number of bootstrap resamples, each of n examples.

  Returns:
    A dict of metrics by name.

    - precision, recall, f1: The macro averages.
    - balanced_accuracy: The mean recall of the classes that have examples.
    - class_examples, class_precision, class_recall, class_f1: Lists of values by class, None for a
      class that does not occur.
    - confusion: The numbers of examples by true class (rows) and predicted class (columns).
    - reliability: The number of examples, the mean confidence and the accuracy in bins of the
      confidence, see `bin_predictions`.
    - intervals: The 95 % intervals [low, high] by name, of all metrics of `measure_predictions`.
    - resamples: The number of resamples.
  """
  figures, intervals = measure_predictions(predictions, classes, resamples)
  return {
    **{name: figures[name] for name in ("precision", "recall", "f1", "balanced_accuracy")},
    "class_examples": np.bincount(predictions.labels, minlength=classes).tolist(),
    **{name: figures[name] for name in ("class_precision", "class_recall", "class_f1")},
    "confusion": count_confusion(predictions, classes).tolist(),
    "reliability": bin_predictions(predictions),
    "intervals": intervals,
    "resamples": resamples,
  }


def measure_predictions(
  predictions: Predictions, classes: int, resamples: int = RESAMPLES
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Computes those metrics of a classifier's predictions that have bootstrap intervals.

  Returns:
    The metrics by name, and their 95 % intervals by name ({} if there are no resamples). The
    metrics are top1, top5, nll (the mean negative log-likelihood, NaN if a logit is not finite),
    ece (the expected calibration error), and precision, recall, f1, balanced_accuracy,
    class_precision, class_recall and class_f1 as `summarize` defines them.
  """
  terms = _Terms(classes)
  matrix = terms.matrix(predictions)
  point = terms.figures(np.asarray(matrix.sum(axis=0)).reshape(1, -1))
  figures = {name: to_plain(x[0]) if x.ndim > 1 else float(x[0]) for name, x in point.items()}
  draws = draw_weights(len(predictions.labels), resamples)
  parts = [terms.figures(weights @ matrix) for weights in draws]
  if not parts:
    return figures, {}
  pooled = {name: np.concatenate([part[name] for part in parts]) for name in point}
  return figures, {name: find_interval(value) for name, value in pooled.items()}


def count_confusion(predictions: Predictions, classes: int) -> np.ndarray:
  """Returns the numbers of examples by true class and predicted class, int (K, K)."""
  known = predictions.classes >= 0
  pairs = predictions.labels[known] * classes + predictions.classes[known]
  return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def bin_predictions(predictions: Predictions) -> dict[str, Any]:
  """Computes the reliability diagram: the accuracy by confidence, the highest probability.

  Returns:
    The lists "examples", "confidence" and "accuracy": the number of examples, the mean confidence
    and the accuracy in each of 15 bins, which divide the range 0..1 of the confidence evenly. An
    empty bin has the confidence and accuracy None.
  """
  bins = _find_bins(predictions.confidence)
  counts = np.bincount(bins, minlength=BINS)
  with np.errstate(invalid="ignore"):
    confidence = np.bincount(bins, predictions.confidence, BINS) / counts
    accuracy = np.bincount(bins, predictions.right, BINS) / counts
  return {
    "examples": counts.tolist(),
    "confidence": to_plain(confidence),
    "accuracy": to_plain(accuracy),
  }


def find_interval(values: np.ndarray) -> Any:
  """Returns the 95 % percentile interval of a metric over bootstrap resamples.

  Args:
    values: The metric in each resample, (R,), or the metrics of K classes, (R, K). NaN marks an
      undefined metric; the interval leaves it out.

  Returns:
    The interval [low, high], or None if the resamples determine none: if no resample defines the
    metric, or if all give the same value, as for an accuracy of 100 % or a class with one example.
    Values (R, K) give a list of K intervals.
  """
  if values.ndim == 2:
    return [find_interval(column) for column in values.T]
  defined = values[~np.isnan(values)]
  has_spread = defined.size and np.ptp(defined) > 0
  return np.percentile(defined, PERCENTILES).tolist() if has_spread else None


def fit_temperature(labels: np.ndarray, logits: np.ndarray) -> float | None:
  """Returns the temperature T that minimizes the mean NLL of logits / T (Guo et al. 2017).

  The mean NLL is convex in the inverse temperature. Its derivative, the mean over the examples of
  the expected logit minus the logit of the true class, has its root there. Examples with a logit
  that is not finite are left out.

  Args:
    labels: The indices of the true classes, (n,).
    logits: The logits, (n, K).

  Returns:
    The temperature, or None if the data do not determine it: if there are fewer than 30 examples,
    or if no temperature between 1/100 and 100 is the best, for example without any mistake.
  """
  finite = np.isfinite(logits).all(axis=1)
  logits, labels = np.asarray(logits, np.float64)[finite], labels[finite]
  true = logits[np.arange(len(labels)), labels]

  def slope(log_inverse: float) -> float:
    probabilities = softmax(logits * np.exp(log_inverse), axis=1)
    return float(((probabilities * logits).sum(axis=1) - true).mean())

  bound = math.log(HOTTEST)
  if len(labels) < LEAST or not slope(-bound) < 0 < slope(bound):
    return None
  return math.exp(-brentq(slope, -bound, bound, xtol=1e-9))


def calibrate(
  temperature: float | None, labels: np.ndarray, logits: np.ndarray, resamples: int = RESAMPLES
) -> dict[str, Any]:
  """Computes the NLL and calibration error of logits before and after division by a temperature.

  Args:
    temperature: The temperature that divides the logits; None if there is none.
    labels: The true classes, (n,).
    logits: The logits, (n, K).
    resamples: The number of bootstrap resamples; 0 gives no intervals.

  Returns:
    The dicts "before" and, with a temperature, "after", each with nll, ece and, with resamples,
    their intervals.
  """
  results: dict[str, Any] = {}
  divisors = {"before": 1.0} | ({} if temperature is None else {"after": temperature})
  for name, divisor in divisors.items():
    predictions = read_logits(np.arange(len(labels)), labels, logits / divisor)
    figures, intervals = measure_predictions(predictions, logits.shape[1], resamples)
    results[name] = {key: figures[key] for key in ("nll", "ece")}
    if intervals:
      results[name]["intervals"] = {key: intervals[key] for key in ("nll", "ece")}
  return results


class _Terms:
  """The table, a row for each example, whose weighted column sums give all metrics.

  A bootstrap resample weights the rows by how often it drew each example, so one matrix product
  gives the sums of many resamples.
  """

  def __init__(self, classes: int):
    widths = {"right": classes, "examples": classes, "predicted": classes, "gap": BINS}
    widths |= dict.fromkeys(("count", "top1", "top5", "nll"), 1)
    ends = np.cumsum([0, *widths.values()]).tolist()
    self._width = ends[-1]
    self._slices = dict(zip(widths, map(slice, ends[:-1], ends[1:]), strict=True))

  def matrix(self, predictions: Predictions) -> scipy.sparse.csr_array:
    """Returns the table of n examples as a sparse matrix, float64 (n, terms)."""
    n, ones = len(predictions.labels), np.ones(len(predictions.labels))
    known, zero = predictions.classes >= 0, np.zeros(n, np.int64)
    right = predictions.right.astype(float)
    terms = {
      "right": (predictions.labels, right),
      "examples": (predictions.labels, ones),
      "predicted": (predictions.classes.clip(0), known.astype(float)),
      "gap": (_find_bins(predictions.confidence), right - predictions.confidence),
      "count": (zero, ones),
      "top1": (zero, right),
      "top5": (zero, (predictions.ranks < TOP).astype(float)),
      "nll": (zero, -predictions.likelihood),
    }
    columns = np.concatenate([self._slices[name].start + at for name, (at, _) in terms.items()])
    values = np.concatenate([value for _, value in terms.values()])
    rows = np.tile(np.arange(n), len(terms))
    return scipy.sparse.csr_array((values, (rows, columns)), shape=(n, self._width))

  def figures(self, sums: np.ndarray) -> dict[str, np.ndarray]:
    """Computes the metrics of R resamples.

    Args:
      sums: The weighted sums of the columns of `matrix` in each resample, (R, terms).

    Returns:
      The metrics by name. Each is an array (R,), or (R, K) if its name begins with "class_".
    """
    part = {name: sums[:, place] for name, place in self._slices.items()}
    right, examples, predicted = part["right"], part["examples"], part["predicted"]
    occurs = examples + predicted > 0
    by_class = {
      "precision": divide(right, predicted),
      "recall": divide(right, examples),
      "f1": divide(2 * right, examples + predicted),
    }
    out = {name: part[name][:, 0] / part["count"][:, 0] for name in ("top1", "top5", "nll")}
    out["ece"] = np.abs(part["gap"]).sum(axis=1) / part["count"][:, 0]
    for name, values in by_class.items():
      out[name] = divide(values.sum(axis=1), occurs.sum(axis=1))
      out[f"class_{name}"] = np.where(occurs, values, np.nan)
    out["balanced_accuracy"] = divide(by_class["recall"].sum(axis=1), (examples > 0).sum(axis=1))
    return out


def draw_weights(count: int, resamples: int) -> Iterator[np.ndarray]:
  """Yields the numbers of each example in a few resamples at a time, float64 (r, count)."""
  generator = np.random.default_rng(SEED)
  most = max(AT_ONCE // count, 1)
  for start in range(0, resamples, most):
    drawn = [generator.integers(count, size=count) for _ in range(min(most, resamples - start))]
    yield np.stack([np.bincount(numbers, minlength=count) for numbers in drawn]).astype(float)


def _find_bins(confidence: np.ndarray) -> np.ndarray:
  return np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)


def to_plain(value: np.ndarray) -> Any:
  """Returns a float, or a list of floats, in which None replaces NaN."""
  if np.ndim(value):
    return [to_plain(item) for item in value]
  return None if np.isnan(value) else float(value)
