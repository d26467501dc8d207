"""Classifiers of frozen features: nearest neighbors, ridge regression and logistic regression.

Each method has one setting, such as the number of neighbors, which is chosen on *validation* from a
list of values (the grid). The grid begins with the value that gives the smoothest classifier. If
several values are equally good, the first of them is chosen.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

ITERATIONS = 1000  # The most iterations of a logistic regression.


@dataclasses.dataclass(frozen=True)
class LabeledFeatures:
  """The features, float32 (n, C), and class numbers, int32 (n,), of n examples."""

  values: np.ndarray
  labels: np.ndarray

  def __len__(self) -> int:
    return len(self.labels)

  def take(self, indices: np.ndarray) -> "LabeledFeatures":
    """Returns the examples with the given indices."""
    return LabeledFeatures(self.values[indices], self.labels[indices])


# A function of training features, of features (m, C) and of settings; yields for each setting the
# predicted classes (m,).
Predict = Callable[[LabeledFeatures, np.ndarray, Sequence[Any]], Iterator[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class ProbeMethod:
  """A classifier of features with one setting.

  Attributes:
    setting: The name of the setting.
    grid: The values of the setting; the first gives the smoothest classifier.
    predict: A function of the training features, the features (n, C) to classify and the grid,
      which yields the predicted classes (n,) for each value.
  """

  setting: str
  grid: tuple[float, ...]
  predict: Predict


@dataclasses.dataclass(frozen=True)
class ProbeScore:
  """The accuracy of a method on both splits, and the setting that *validation* chose.

  `at_end` says that the setting is the first or last of the grid: a better one may be outside.
  """

  setting: float
  validation: float
  test: float
  at_end: bool


def score(
  method: str, train: LabeledFeatures, validation: LabeledFeatures, test: LabeledFeatures
) -> ProbeScore:
  """Chooses the setting of a method on *validation*, and measures its accuracy on *test*."""
  chosen = METHODS[method]
  # There cannot be more neighbors than examples.
  is_count = chosen.setting == "k"
  grid = [x for x in chosen.grid if not is_count or x <= len(train)]
  values = np.concatenate([validation.values, test.values])
  predicted = [*chosen.predict(train, values, grid)]
  rates = [_accuracy(classes[: len(validation)], validation) for classes in predicted]
  best = int(np.argmax(rates))
  final = _accuracy(predicted[best][len(validation) :], test)
  return ProbeScore(grid[best], rates[best], final, best in (0, len(grid) - 1))


def predict_out_of_fold(examples: LabeledFeatures, folds: np.ndarray, classes: int) -> np.ndarray:
  """Predicts each example by a logistic regression that learns from the other folds.

  The values of its setting are tried from the smoothest on, until the NLL of the labels rises.

  Args:
    examples: The n examples.
    folds: The fold of each example, int (n,).
    classes: The number of classes, K.

  Returns:
    The probabilities of the classes, (n, K).
  """
  result, lowest = np.zeros((len(examples), classes)), np.inf
  ways: dict[str, Any] = {"cv": PredefinedSplit(folds), "method": "predict_proba"}
  for c in METHODS["logistic"].grid:
    model = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=ITERATIONS))
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # of few iterations, and of classes that few folds have
      rows = cross_val_predict(model, examples.values, examples.labels, **ways)
    nll = log_loss(examples.labels, rows)
    if nll > lowest:
      break
    result[:, np.unique(examples.labels)], lowest = rows, nll
  return result


def _accuracy(predicted: np.ndarray, examples: LabeledFeatures) -> float:
  return float(np.mean(predicted == examples.labels))


def _vote(train: LabeledFeatures, values: np.ndarray, grid: Sequence[int]) -> Iterator[np.ndarray]:
  """Yields for each k the most frequent class of the k nearest neighbors by cosine, (n,)."""
  search = NearestNeighbors(n_neighbors=max(grid), metric="cosine").fit(train.values)
  classes, places = np.unique(train.labels, return_inverse=True)
  voters = places[search.kneighbors(values, return_distance=False)]
  for k in grid:
    votes = np.zeros((len(values), len(classes)), np.int32)
    for column in voters[:, :k].T:
      votes[np.arange(len(values)), column] += 1
    yield classes[votes.argmax(axis=1)]


def _regress(
  make: Callable[[float], Any], train: LabeledFeatures, values: np.ndarray, grid: Sequence[float]
) -> Iterator[np.ndarray]:
  """Yields the predictions of a linear classifier of standardized features for each setting."""
  scaler = StandardScaler().fit(train.values.astype(np.float64))
  features, queries = (scaler.transform(x.astype(np.float64)) for x in (train.values, values))
  for value in grid:
    with warnings.catch_warnings():
      # A weakly regularized fit of few examples may need more iterations; it is good enough.
      warnings.simplefilter("ignore", ConvergenceWarning)
      yield make(value).fit(features, train.labels).predict(queries)


_predict_ridge = partial(_regress, RidgeClassifier)
_predict_logistic = partial(_regress, lambda c: LogisticRegression(C=c, max_iter=ITERATIONS))
METHODS: dict[str, ProbeMethod] = {
  "knn": ProbeMethod("k", (100, 50, 20, 10, 5, 2, 1), _vote),
  "ridge": ProbeMethod("alpha", tuple(10.0**e for e in range(5, -3, -1)), _predict_ridge),
  "logistic": ProbeMethod("C", tuple(10.0**e for e in range(-4, 3)), _predict_logistic),
}
