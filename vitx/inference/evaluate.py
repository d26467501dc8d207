"""Evaluates a trained model on a split."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from vitx.analysis import classification, csv_files
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.outputs import check_folder
from vitx.checkpoints.workdir import check_file
from vitx.config.checks import PositiveInt, check_choice, check_value
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings, read_settings, seed_of
from vitx.config.overrides import split as split_overrides
from vitx.config.overrides import with_overrides
from vitx.config.settings import change
from vitx.data.class_names import FILE, compare, renumber
from vitx.data.dataset import ROLES, Dataset, Examples, Joined, spread
from vitx.data.readable import warn_of_unread
from vitx.data.splits import assign
from vitx.inference.opening import change_folder, check_channels, open_for, open_model
from vitx.inference.subject import Evaluation
from vitx.runtime import evaluation, parallel
from vitx.tasks.base import Task
from vitx.tasks.classification import Classification

SPLITS = (*ROLES, "all")


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
      returned, which has its checkpoint and weights already.
    checkpoint: "best" (by the task's primary metric on *validation*), "latest" or a step.
    weights: The weights, "ema" or "raw", see `vitx.load`; `None` means those that selected the best
      checkpoint.
    split: "train", "validation" or "test", as in training, or "all" for every example of the
      source. `None` means "test" for the run's source and "all" for another. A copy of the run's
      data in another place has the run's splits.
    source: Another source, such as folder:PATH, whose class names the model knows; `None` means the
      run's source.
    data_dir: The directory of TFDS sets; `None` means the run's.
    batch_size: The batch size over all devices; `None` means the run's evaluation batch size.
    limit: The number of examples to evaluate, spread evenly over the split; `None` means all.
    task: New values `field=value,...` of task fields that evaluation reads, such as
      `min_context=64`.
    predictions: The path of a CSV file to write, with a row per example: its name and the task's
      columns.
    calibrate: Whether to fit a temperature on *validation* of the run. The result then has
      `calibration`, the metrics before and after the logits are divided by the temperature, which
      is None if the examples do not determine it, see `classification.fit_temperature`.
    report: The folder for a report, `index.html` and `report.md`, with all metrics and with
      pictures of mistakes. A report implies `calibrate`.
    trust_code: Whether to import the objects that the run's config names as `module:Name`.

  Returns:
    A dict with workdir, step, source, split and class_names, and with the task's metrics, such as
    the number of `examples`.

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
  with open_model(workdir, checkpoint, **model) as loaded:
    evaluated = evaluate_split(loaded, calibrate=calibrate or report is not None, **options)
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
) -> Evaluation:
  """Evaluates a model on a split; `evaluate` documents the arguments."""
  check_value(batch_size, "batch_size", PositiveInt | None)
  check_value(limit, "limit", PositiveInt | None)
  with open_model(workdir) as loaded:
    settings = loaded.settings
    if batch_size is not None:
      settings = change(settings, {"evaluation.batch_size": batch_size})
    if task:
      changes = ",".join(f"task.{item}" for item in split_overrides(task))
      try:
        loaded = loaded.with_task(read_settings(with_overrides(loaded.config, changes)))
      except ValueError as error:
        raise ConfigError(f"task={task!r}: {error}") from error
    collected = _Collector(loaded.task, keep_logits=calibrate)
    if calibrate and not collected.is_wanted:
      raise ConfigError(
        "a report and a calibration need one class for each example, and a single process; give the"
        " run of a classifier."
      )
    dataset, train, examples, split = _open(loaded, split, source, data_dir)
    examples = examples if limit is None else spread(examples, limit)
    read = loaded.task.examples(examples, train=False)
    read = read if limit is None else spread(read, limit)  # a document has many windows
    with _predictions(file, read, loaded) as write:
      figures = _run([(loaded, read)], settings, write, collected)
    if train is not None:
      figures |= loaded.task.references(train, examples)
    if predictions := collected.join():
      figures |= classification.summarize(predictions, len(loaded.class_names))
    if predictions and calibrate:
      fitted = collected
      if split != "validation" or source not in (None, loaded.settings.data.source):
        fitted = _Collector(loaded.task, keep_logits=True)
        validation = _open(loaded, "validation", None, data_dir)[2]
        validation = validation if limit is None else spread(validation, limit)
        _run([(loaded, validation)], settings, None, fitted)
      figures["calibration"] = _calibrate(collected, fitted)
  result = {
    "workdir": loaded.workdir,
    "step": loaded.step,
    "source": dataset.info.name,
    "split": split,
    "class_names": list(loaded.class_names),
    **figures,
  }
  return Evaluation(loaded, read, result, predictions)


def evaluate_together(models: Sequence[Loaded]) -> dict[str, Any]:
  """Evaluates models of one task, each on its own *test*, as if all examples were one split.

  Returns:
    The task's metrics, and for a classifier those of `classification.summarize`.
  """
  parts = [(x, x.task.examples(_open(x, "test", None, None)[2], train=False)) for x in models]
  collected = _Collector(models[0].task, keep_logits=False)
  figures = _run(parts, models[0].settings, None, collected)
  if predictions := collected.join():
    figures |= classification.summarize(predictions, len(models[0].class_names))
  return figures


class _Collector:
  """A collector of a classifier's predictions, with labels, by batch.

  Attributes:
    is_wanted: Whether predictions are collected. This needs a classifier of one class for each
      example, and a single process that evaluates all examples.
  """

  def __init__(self, task: Task, *, keep_logits: bool):
    """Begins without predictions; `keep_logits` keeps K numbers for each example besides."""
    has_one_label = isinstance(task, Classification) and task.targets == Classification.targets
    self.is_wanted = has_one_label and jax.process_count() == 1
    self._keep_logits = keep_logits
    self._parts: list[classification.Predictions] = []
    self._logits: list[np.ndarray] = []

  def take(self, batch: dict[str, np.ndarray], rows: dict[str, np.ndarray]) -> None:
    """Adds the predictions of a batch; see `evaluation.TakeRows` for the arguments."""
    if self.is_wanted and "logits" in rows and len(batch["label"]):
      logits = np.asarray(rows["logits"])
      self._parts.append(classification.read_logits(batch["example"], batch["label"], logits))
      if self._keep_logits:
        self._logits.append(logits)

  def join(self) -> classification.Predictions | None:
    """Returns the predictions for all examples; `None` if none were collected."""
    return classification.join_predictions(self._parts) if self._parts else None

  def logits(self) -> np.ndarray:
    """Returns the logits of all batches, (n, K)."""
    return np.concatenate(self._logits)


def _calibrate(collected: _Collector, fitted: _Collector) -> dict[str, Any]:
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


def _run(
  models: Sequence[tuple[Loaded, Examples]],
  settings: RunSettings,
  write: evaluation.TakeRows | None,
  collected: _Collector,
) -> dict[str, Any]:
  """Evaluates models, each on its own examples, and returns the metrics of all examples together.

  The metrics are those of the first model's task.
  """
  steps: list[Callable[..., Any]] = []  # the step of the current batch's model alone

  def read_batches() -> Iterator[dict[str, np.ndarray]]:
    for loaded, examples in models:
      state = {name: parallel.replicate(tree) for name, tree in loaded.variables.items()}
      params, constants = state.pop("params"), parallel.replicate(loaded.task.constants())
      name, make = ("evaluate", evaluation.batch_size_for(settings)), evaluation.make_evaluate
      step = loaded.program(name, functools.partial(make, loaded.task))
      steps[:] = [functools.partial(step, params, state, constants)]
      yield from evaluation.show_batches(settings, loaded.task, examples, "evaluating")

  def take(batch: dict[str, np.ndarray], rows: dict[str, np.ndarray]) -> None:
    if write is not None:
      write(batch, rows)
    collected.take(batch, rows)

  rows, task = take if collected.is_wanted else write, models[0][0].task
  answer = lambda *arguments: steps[0](arguments[-1])  # noqa: E731
  return evaluation.evaluate(task, answer, {"": {}}, {}, {}, read_batches(), rows)[""]


def _open(
  loaded: Loaded, split: str | None, source: str | None, data_dir: str | None
) -> tuple[Dataset, Examples | None, Examples, str]:
  """Returns the data set, its train (None for "all"), the examples to evaluate and their split."""
  is_own = source in (None, loaded.settings.data.source)
  split = check_choice(split or ("test" if is_own else "all"), "split", SPLITS)
  data = change_folder(loaded, data_dir)
  dataset, data = open_for(loaded, data, source)
  dataset = _match(loaded, dataset)
  name, is_same = dataset.info.name, dataset.info.fingerprint == loaded.fingerprint
  if is_own and not is_same:
    logging.warning(
      "%s has changed since the run; its %s may have examples on which the run trained", name, split
    )
  if not is_own and is_same and split in ("train", "all"):
    logging.warning("%s is the data of the run and contains the training examples", name)
  if dataset.problem and not is_same:
    logging.warning(dataset.problem)
  if split == "all":
    warn_of_unread(name, dataset.unread)
    roles: dict[str, Examples] = {split: Joined([*map(dataset.open_split, dataset.splits)])}
  else:
    roles = assign(dataset, data, seed_of(loaded.settings, "data_seed"))
  if not len(roles[split]):
    raise ConfigError(f"split={split!r} of {name!r} has no examples; choose another.")
  return dataset, roles.get("train"), roles[split], split


def _match(loaded: Loaded, dataset: Dataset) -> Dataset:
  """Returns a data set whose labels are changed to the numbers of the model's classes."""
  names, classes = dataset.info.class_names or (), loaded.class_names
  if not {"label", "labels"} & loaded.task.element_spec.keys():  # classes do not matter
    names = classes = ()
  unnamed = not loaded.knows_class_names
  matched = renumber(dataset, classes, unnamed=unnamed) if names and classes else dataset
  if matched is None or bool(names) != bool(classes):
    raise ConfigError(
      f"source={dataset.info.name!r} has {len(names)} classes and the model has {len(classes)};"
      f" they are matched by name ({compare(names, classes, 'source', 'model')}). Rename the"
      " classes of the source. If the model knows only numbers, list its classes in order in a"
      f" file {FILE} in the source's folder, or beside the weights before `vitx convert`."
    )
  check_channels(loaded, dataset.info)
  return matched


@contextlib.contextmanager
def _predictions(
  path: str | Path | None, examples: Examples, loaded: Loaded
) -> Iterator[evaluation.TakeRows | None]:
  """Opens a CSV file, and yields a function that writes a row for each example of a batch."""
  if path is None:
    yield None
    return
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
