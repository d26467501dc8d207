"""Runs models over splits, and collects their predictions."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import jax
import numpy as np

from vitx.analysis import classification
from vitx.analysis.prediction_sets import Threshold, find_threshold
from vitx.checkpoints.load import Loaded
from vitx.config.checks import Range, check_value
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings
from vitx.data.dataset import CALIBRATION, Examples
from vitx.inference.opening import open_split
from vitx.runtime import evaluation, parallel
from vitx.tasks.base import Task
from vitx.tasks.classification import Classification


class Collector:
  """A collector of a classifier's predictions, with labels, by batch.

  Attributes:
    is_wanted: Whether predictions are collected. This needs a classifier of one class for each
      example, and a single process that evaluates all examples.
  """

  def __init__(self, task: Task, *, keep_logits: bool):
    """Begins without predictions; `keep_logits` keeps K numbers for each example besides.

    Raises:
      ConfigError: The logits are to be kept, and no predictions can be collected.
    """
    has_one_label = isinstance(task, Classification) and task.targets == Classification.targets
    self.is_wanted = has_one_label and jax.process_count() == 1
    if keep_logits and not self.is_wanted:
      raise ConfigError(
        "a report, a calibration and prediction sets need one class for each example, and a single"
        " process; give the run of a classifier."
      )
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


def run_models(
  models: Sequence[tuple[Loaded, Examples]],
  settings: RunSettings,
  write: evaluation.TakeRows | None,
  collected: Collector,
) -> dict[str, Any]:
  """Evaluates models, each on its own examples, and returns the metrics of all examples together.

  Args:
    models: The models with their examples. The metrics are those of the first model's task.
    settings: The settings that have the size of a batch.
    write: A function of each batch and its rows, see `evaluation.TakeRows`; None for none. The
      examples of a model are numbered from the end of those of the models before.
    collected: The collector that takes the predictions.
  """
  steps: list[Callable[..., Any]] = []  # the step of the current batch's model alone

  def read_batches() -> Iterator[dict[str, np.ndarray]]:
    start = 0
    for loaded, examples in models:
      state = {name: parallel.replicate(tree) for name, tree in loaded.variables.items()}
      params, constants = state.pop("params"), parallel.replicate(loaded.task.constants())
      name, make = ("evaluate", evaluation.batch_size_for(settings)), evaluation.make_evaluate
      step = loaded.program(name, functools.partial(make, loaded.task))
      steps[:] = [functools.partial(step, params, state, constants)]
      for batch in evaluation.show_batches(settings, loaded.task, examples, "evaluating"):
        yield {**batch, "example": batch["example"] + start}
      start += len(examples)

  def take(batch: dict[str, np.ndarray], rows: dict[str, np.ndarray]) -> None:
    if write is not None:
      write(batch, rows)
    collected.take(batch, rows)

  rows, task = take if collected.is_wanted else write, models[0][0].task
  answer = lambda *arguments: steps[0](arguments[-1])  # noqa: E731
  return evaluation.evaluate(task, answer, {"": {}}, {}, {}, read_batches(), rows)[""]


def collect(loaded: Loaded, settings: RunSettings, examples: Examples) -> Collector:
  """Returns a classifier's predictions and logits for examples; `settings` have the batch size."""
  collected = Collector(loaded.task, keep_logits=True)
  run_models([(loaded, examples)], settings, None, collected)
  return collected


def calibrate_sets(
  loaded: Loaded, settings: RunSettings, coverage: float, data_dir: str | None = None
) -> Threshold:
  """Returns the threshold of a classifier's prediction sets, see `find_threshold`.

  Raises:
    ConfigError: The run set no examples for calibration aside, or is no classifier.
  """
  check_value(coverage, "coverage", Annotated[float, Range("(0, 1)")])
  collected = collect(loaded, settings, open_split(loaded, CALIBRATION, None, data_dir)[2])
  predictions = collected.join()
  assert predictions is not None
  return find_threshold(predictions.labels, collected.logits(), coverage)
