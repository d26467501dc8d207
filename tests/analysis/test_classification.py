"""The metrics of a classifier's predictions agree with scikit-learn and with their formulas."""

import json

import numpy as np
import pytest
import sklearn.metrics as reference
from scipy.special import softmax

from vitx.analysis import classification

CLASSES = 6


def draw(examples=200, classes=CLASSES, seed=0, scale=1.0, absent=()):
  """Draws labels, and logits that favor the true class."""
  generator = np.random.default_rng(seed)
  labels = generator.choice([k for k in range(classes) if k not in absent], examples)
  logits = generator.normal(size=(examples, classes)).astype(np.float32)
  logits[np.arange(examples), labels] += 1
  return labels, scale * logits


def predictions_of(labels, logits):
  return classification.read_logits(np.arange(len(labels)), labels, logits)


@pytest.mark.parametrize("absent", [(), (0, 4)])
def test_figures_agree_with_scikit_learn(absent):
  labels, logits = draw(absent=absent)
  guess = logits.argmax(1)
  summary = classification.summarize(predictions_of(labels, logits), CLASSES, resamples=5)
  options = {"labels": np.arange(CLASSES), "zero_division": 0}
  expected = reference.precision_recall_fscore_support(labels, guess, **options)
  for name, values in zip(("precision", "recall", "f1"), expected, strict=False):
    np.testing.assert_allclose(summary[f"class_{name}"], values)
  macro = reference.precision_recall_fscore_support(labels, guess, average="macro", zero_division=0)
  np.testing.assert_allclose([summary[name] for name in ("precision", "recall", "f1")], macro[:3])
  balanced = np.mean([np.mean(guess[labels == k] == k) for k in np.unique(labels)])
  assert summary["balanced_accuracy"] == pytest.approx(balanced)
  matrix = reference.confusion_matrix(labels, guess, labels=np.arange(CLASSES))
  assert summary["confusion"] == matrix.tolist()
  assert summary["class_examples"] == np.bincount(labels, minlength=CLASSES).tolist()
  json.dumps(summary, allow_nan=False)


def test_a_class_that_does_not_occur_counts_for_nothing():
  labels, logits = draw(absent=(2,))
  logits[:, 2] = -99
  summary = classification.summarize(predictions_of(labels, logits), CLASSES, resamples=5)
  assert summary["class_f1"][2] is None and summary["intervals"]["class_f1"][2] is None
  assert summary["f1"] == pytest.approx(np.mean([x for x in summary["class_f1"] if x is not None]))


def test_the_reliability_diagram_gives_the_calibration_error():
  labels, logits = draw(scale=3)
  bins = classification.bin_predictions(predictions_of(labels, logits))
  p = softmax(logits.astype(np.float64), axis=1)
  hit, top = p.argmax(1) == labels, p.max(1)
  for b in range(15):
    inside = (top > b / 15) & (top <= (b + 1) / 15)
    assert bins["examples"][b] == inside.sum()
    expected = (top[inside].mean(), hit[inside].mean()) if inside.any() else (None, None)
    assert (bins["confidence"][b], bins["accuracy"][b]) == pytest.approx(expected)
  gaps = [
    n * abs(c - a)
    for n, c, a in zip(bins["examples"], bins["confidence"], bins["accuracy"], strict=True)
    if n
  ]
  error = classification.calibrate(1.0, labels, logits, resamples=0)["before"]["ece"]
  assert error == pytest.approx(sum(gaps) / len(labels))


def test_the_temperature_minimizes_the_loss():
  labels, logits = draw(examples=2_000, scale=4)
  logits = logits.astype(np.float64)
  temperature = classification.fit_temperature(labels, logits)

  def nll(t):
    return reference.log_loss(labels, softmax(logits / t, axis=1), labels=np.arange(CLASSES))

  grid = temperature * np.geomspace(0.5, 2, 101)
  assert nll(temperature) <= min(map(nll, grid)) + 1e-9
  assert classification.fit_temperature(labels, 3 * logits) == pytest.approx(3 * temperature, 1e-4)
  calibration = classification.calibrate(temperature, labels, logits, resamples=20)
  values = [calibration["before"]["nll"], calibration["after"]["nll"]]
  assert values == pytest.approx([nll(1), nll(temperature)])
  low, high = calibration["after"]["intervals"]["nll"]
  assert low < values[1] < high


# Too few; no mistake; none, with a loss of 0 in the search; worse than chance; outside the search.
@pytest.mark.parametrize("case", [(29, 3, 1), (30, 0, 1), (30, 0, 1e4), (30, 30, 1), (30, 3, 1e-3)])
def test_a_temperature_needs_examples_and_mistakes(case):
  def fit(examples, mistakes, scale):
    labels = np.arange(examples) % CLASSES
    logits = scale * np.eye(CLASSES)[labels - (np.arange(examples) < mistakes)]
    temperature = classification.fit_temperature(labels, logits)
    return temperature, classification.calibrate(temperature, labels, logits, 0).keys()

  assert fit(*case) == (None, {"before"})
  assert fit(30, 3, 1)[1] == {"before", "after"}


def test_logits_that_are_not_finite_do_not_change_the_temperature():
  labels, logits = draw(scale=4)
  logits[0, 1] = np.nan
  temperature = classification.fit_temperature(labels, logits)
  assert temperature == classification.fit_temperature(labels[1:], logits[1:])
  assert classification.fit_temperature(labels[:1], logits[:1]) is None


def test_intervals_are_percentiles_over_resamples():
  """Confidence intervals are percentiles of the metrics of resampled examples."""
  labels, logits = draw(examples=60)
  summary = classification.summarize(predictions_of(labels, logits), CLASSES, resamples=200)
  generator, guess = np.random.default_rng(0), logits.argmax(1)
  drawn = [generator.integers(60, size=60) for _ in range(200)]
  scores = {"average": "macro", "zero_division": 0}
  figures = {
    "top1": [np.mean(guess[i] == labels[i]) for i in drawn],
    "f1": [reference.f1_score(labels[i], guess[i], **scores) for i in drawn],
  }
  for name, values in figures.items():
    expected = np.percentile(values, [2.5, 97.5])
    np.testing.assert_allclose(summary["intervals"][name], expected, err_msg=name)
  assert summary["intervals"]["ece"][0] < summary["intervals"]["ece"][1]


def test_a_figure_that_no_resample_changes_has_no_interval():
  values = np.array([[1, 0.5, np.nan], [1, 1, np.nan]])
  bounds = classification.find_interval(values)
  assert bounds[0] is None and bounds[1] == pytest.approx([0.5125, 0.9875]) and bounds[2] is None


def test_an_example_with_a_logit_that_is_not_finite_is_wrong_for_every_class():
  labels, logits = draw(examples=20)
  logits[3, labels[3]] = np.nan
  predictions = predictions_of(labels, logits)
  summary = classification.summarize(predictions, CLASSES, resamples=5)
  assert not predictions.right[3] and 3 not in predictions.mistakes
  assert np.sum(summary["confusion"]) == 19
  assert summary["class_recall"][labels[3]] < 1


def test_mistakes_and_doubts_are_sorted_by_confidence():
  labels = np.array([0, 1, 0, 1])
  logits = np.array([[3.0, 0.0], [2.0, 0.0], [0.0, 4.0], [0.0, 0.1]])
  predictions = predictions_of(labels, logits)
  assert predictions.mistakes.tolist() == [2, 1]
  assert predictions.least_certain.tolist() == [3, 1, 0, 2]
