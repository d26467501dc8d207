"""Evaluates a trained model on a split."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vitx.analysis import classification, csv_files
from vitx.analysis.prediction_sets import COVERAGE, Threshold, measure_sets
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.outputs import check_folder
from vitx.checkpoints.workdir import check_file
from vitx.config.checks import PositiveInt, check_value
from vitx.config.errors import ConfigError
from vitx.config.fields import read_settings
from vitx.config.overrides import split as split_overrides
from vitx.config.overrides import with_overrides
from vitx.config.settings import change
from vitx.data.dataset import CALIBRATION, Dataset, Examples, Joined, spread
from vitx.inference.collector import Collector, calibrate_sets, collect, run_models
from vitx.inference.ensemble import Ensemble, load_model
from vitx.inference.opening import is_own, open_model, open_split
from vitx.inference.subject import Evaluation
from vitx.runtime import evaluation


def evaluate(
  workdir: str | Path | Loaded,
  *,
  checkpoint: str | int = "best",
  weights: str | None = None,
  split: str | None = None,
  source: str | None = None,
  data_dir: str | None = None,
  batch_size: int | None = None,
  limit: int | None = None,
  task: str = "",
  predictions: str | Path | None = None,
  calibrate: bool = False,
  coverage: float | None = None,
  report: str | Path | None = None,
  trust_code: bool = False,
) -> dict[str, Any]:
  """Evaluates a model on every example of a split exactly once, on any number of devices.

  For a classifier it also computes the confusion matrix, precision, recall, F1, the balanced
  accuracy, the reliability diagram and a 95 % bootstrap interval of each metric, see
  `vitx.analysis.classification.summarize`. These metrics are left out if several processes
  evaluate, since each has only its share of the examples.

  Args:
    workdir: The workdir of a training run, the repository of a model, or a model that `vitx.load`
      returned, which has its checkpoint and weights already. The directory of a sweep, or of a
      method in it as `SWEEP/METHOD`, means its runs as one model, whose probabilities are the mean
      of theirs. Where runs have different folds, the test examples of each fold are answered by the
      runs that test this fold.
    checkpoint: "best" (by the task's primary metric on *validation*), "latest" or a step.
    weights: The weights, "ema" or "raw", see `vitx.load`; `None` means those that selected the best
      checkpoint.
    split: "train", "validation", "test" or "calibration", as in training, or "all" for every
      example of the source. `None` means "test" for the run's source and "all" for another. A
      copy of the run's data in another place has the run's splits.
    source: Another source, such as folder:PATH, whose class names the model knows; `None` means the
      run's source.
    data_dir: The directory of TFDS sets; `None` means the run's.
    batch_size: The batch size over all devices; `None` means the run's evaluation batch size.
    limit: The number of examples to evaluate, spread evenly over the split, and over the folds of a
      sweep; `None` means all.
    task: New values `field=value,...` of task fields that evaluation reads, such as
      `min_context=64`.
    predictions: The path of a CSV file to write, with a row per example: its name and the task's
      columns.
    calibrate: Whether to fit a temperature on *validation* of the run. The result then has
      `calibration`, the metrics before and after the logits are divided by the temperature, which
      is None if the examples do not determine it, see `classification.fit_temperature`.
    coverage: The probability with which a prediction set is to contain the true class, see
      `vitx.analysis.prediction_sets`; `None` makes no sets. They are calibrated on the examples
      that the run's `data.calibration` set aside. The result then has `sets`, a description of the
      threshold, and the metrics of `measure_sets`.
    report: The folder for a report, `index.html` and `report.md`, with all metrics and with
      pictures of mistakes. On the run's own source, a report implies `coverage=0.9` if the run set
      examples for calibration aside, and `calibrate`, but not for an ensemble, since no validation
      examples are new to all its members.
    trust_code: Whether to import the objects that the run's config names as `module:Name`.

  Returns:
    A dict with workdir, step (of an ensemble a list), source, split and class_names, and with the
    task's metrics, such as the number of `examples`.

  Raises:
    ConfigError: The workdir, checkpoint, source or split does not exist, or the classes differ.
    CorruptCheckpoint: The checkpoint is damaged.
  """
  check_file(predictions, "predictions")
  if report is not None:
    # The report loads code for drawing, and imports this file.
    from vitx.inference import report as pages

    check_folder(report, "report")
    pages.style.make_canvas(1, 1)  # a missing matplotlib is reported before the long evaluation
  options: dict[str, Any] = dict(split=split, source=source, data_dir=data_dir, limit=limit)
  options |= dict(batch_size=batch_size, task=task, file=predictions)
  model: dict[str, Any] = dict(weights=weights, source=source, trust_code=trust_code)
  with open_model(workdir, checkpoint, load=load_model, **model) as loaded:
    if report is not None:
      has_own = is_own(loaded, source)
      calibrate = calibrate or (has_own and not isinstance(loaded, Ensemble))
      has_sets = has_own and loaded.settings.data.calibration > 0
      coverage = COVERAGE if coverage is None and has_sets else coverage
    evaluated = evaluate_split(loaded, calibrate=calibrate, coverage=coverage, **options)
    if report is not None:
      pages.write_report(evaluated, report)
  return evaluated.result


def evaluate_split(
  workdir: str | Path | Loaded,
  *,
  split: str | None = None,
  source: str | None = None,
  data_dir: str | None = None,
  batch_size: int | None = None,
  limit: int | None = None,
  task: str = "",
  file: str | Path | None = None,
  calibrate: bool = False,
  coverage: float | None = None,
) -> Evaluation:
  """Evaluates a model on a split; `evaluate` documents the arguments."""
  check_value(batch_size, "batch_size", PositiveInt | None)
  check_value(limit, "limit", PositiveInt | None)
  with open_model(workdir, load=load_model) as loaded:
    settings = loaded.settings
    if batch_size is not None:
      settings = change(settings, {"evaluation.batch_size": batch_size})
    if task:
      changes = ",".join(f"task.{item}" for item in split_overrides(task))
      try:
        loaded = loaded.with_task(read_settings(with_overrides(loaded.config, changes)))
      except ValueError as error:
        raise ConfigError(f"task={task!r}: {error}") from error
    collected = Collector(loaded.task, keep_logits=calibrate or coverage is not None)
    parts, thresholds = [], []
    models = _divide(loaded, split, source)
    limit = limit and math.ceil(limit / len(models))
    for model in models:
      dataset, train, examples, name = open_split(model, split, source, data_dir)
      examples = examples if limit is None else spread(examples, limit)
      read = loaded.task.examples(examples, train=False)
      # A document has many windows.
      parts.append((model, read if limit is None else spread(read, limit)))
      if coverage is not None:
        if name == CALIBRATION and is_own(model, source):
          raise ConfigError(
            f"coverage={coverage}: the examples of split={name!r} set the thresholds, so their"
            " coverage says nothing of others. Evaluate another split."
          )
        thresholds.append(calibrate_sets(model, settings, coverage, data_dir))
    # Opened before the evaluation, which may take an hour.
    validation = _open_validation(loaded, dataset, name, source, data_dir) if calibrate else None
    whole = parts[0][1] if len(parts) == 1 else Joined([read for _, read in parts])
    with _predictions(file, whole, loaded) as write:
      figures = run_models(parts, settings, write, collected)
    if train is not None:
      figures |= loaded.task.references(train, examples)
    if predictions := collected.join():
      figures |= classification.summarize(predictions, len(loaded.class_names))
    if predictions and calibrate:
      fitted = collected
      if validation is not None:
        fitted = collect(
          loaded, settings, validation if limit is None else spread(validation, limit)
        )
      figures["calibration"] = _calibrate(collected, fitted)
    if predictions and thresholds:
      starts = np.cumsum([len(read) for _, read in parts])[:-1]
      figures = _add_sets(figures, thresholds, predictions, np.split(collected.logits(), starts))
  result = {
    "workdir": loaded.workdir,
    "step": [x.step for x in loaded.members] if isinstance(loaded, Ensemble) else loaded.step,
    "source": dataset.info.name,
    "split": name,
    "class_names": list(loaded.class_names),
    **figures,
  }
  return Evaluation(loaded, whole, result, predictions)


def _open_validation(
  loaded: Loaded, dataset: Dataset, split: str, source: str | None, data_dir: str | None
) -> Examples | None:
  """Opens *validation* of the run for a temperature; None if the split of `dataset` is this."""
  is_same = is_own(loaded, source) or dataset.info.fingerprint == loaded.fingerprint
  if is_same and split == "validation":
    return None
  return open_split(loaded, "validation", source if is_same else None, data_dir)[2]


def _divide(loaded: Loaded, split: str | None, source: str | None) -> list[Loaded]:
  """Returns the models that each answer a part of the split: those of each fold, on *test*."""
  is_test = is_own(loaded, source) and split in (None, "test")
  return loaded.by_fold() if isinstance(loaded, Ensemble) and is_test else [loaded]


def _add_sets(
  figures: dict[str, Any],
  thresholds: Sequence[Threshold],
  predictions: classification.Predictions,
  parts: Sequence[np.ndarray],
) -> dict[str, Any]:
  """Returns the metrics of a split with those of the prediction sets of the logits of each part."""
  sets = np.concatenate([x.choose(part) for x, part in zip(thresholds, parts, strict=True)])
  measured, intervals = measure_sets(predictions.labels, sets)
  described = thresholds[0].describe() | {"thresholds": [x.value for x in thresholds]}
  return figures | measured | {"intervals": figures["intervals"] | intervals, "sets": described}


def evaluate_together(models: Sequence[Loaded]) -> dict[str, Any]:
  """Evaluates models of one task, each on its own *test*, as if all examples were one split.

  Returns:
    The task's metrics, and for a classifier those of `classification.summarize`.
  """
  parts = [(x, x.task.examples(open_split(x, "test", None, None)[2], train=False)) for x in models]
  collected = Collector(models[0].task, keep_logits=False)
  figures = run_models(parts, models[0].settings, None, collected)
  if predictions := collected.join():
    figures |= classification.summarize(predictions, len(models[0].class_names))
  return figures


def _calibrate(collected: Collector, fitted: Collector) -> dict[str, Any]:
  """Fits a temperature to the predictions for *validation*, and measures both splits with it."""
  known, predictions = fitted.join(), collected.join()
  assert known is not None and predictions is not None
  temperature = classification.fit_temperature(known.labels, fitted.logits())
  validation = classification.calibrate(temperature, known.labels, fitted.logits(), resamples=0)
  return {
    "temperature": temperature,
    # The class of an example with a logit that is not finite is -1.
    "fitted_examples": int((known.classes >= 0).sum()),
    "fitted_mistakes": len(known.mistakes),
    **classification.calibrate(temperature, predictions.labels, collected.logits()),
    "validation": validation,
  }


@contextlib.contextmanager
def _predictions(
  path: str | Path | None, examples: Examples, loaded: Loaded
) -> Iterator[evaluation.TakeRows | None]:
  """Opens a CSV file, and yields a function that writes a row for each example of a batch."""
  if path is None:
    yield None
    return
  if jax.process_count() > 1:
    raise ConfigError("predictions: several processes would write one file; start one process.")
  with csv_files.create(path) as add:
    heads: list[str] = []

    def write(batch: dict[str, np.ndarray], rows: dict[str, np.ndarray]) -> None:
      columns = loaded.task.predictions(loaded.class_names, batch, rows)
      if not heads:  # this is the first batch
        heads[:] = "name", *columns
        add(heads)
      names = map(examples.name, batch["example"].tolist())
      for row in zip(names, *columns.values(), strict=True):
        add(row)

    yield write
