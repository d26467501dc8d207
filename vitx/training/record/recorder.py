"""Writes the metrics of a run while it trains, and keeps the record that checkpoints store of them.

A row is a line of `metrics.jsonl`. A row of kind "train" has means over a window, the steps since
the last row of this kind. Other rows have the figures of an evaluation.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from vitx.checkpoints.metrics import MetricsLog
from vitx.runtime.progress import Progress
from vitx.tasks.figures import Figures, describe
from vitx.training.experiment import Experiment
from vitx.training.record.tracking import open_tracking

# Metrics of a step that are not averaged over the steps between two rows of kind "train".
NO_MEANS = ("learning_rate", "gradient_norm", "loss_scale")


@dataclasses.dataclass
class Record:
  """The values that a checkpoint stores besides the training state, so that a run can continue.

  They are stored as the JSON that `Recorder.snapshot` returns.

  Attributes:
    rows: The number of rows of `metrics.jsonl` up to this step.
    seconds: The seconds of training so far, over all runs.
    window: The sums of the loss and the task's metrics over the steps since the last row of kind
      "train", and the number of these steps.
    best_step: The step of the best evaluation on *validation* so far; a tie goes to the later.
    best_value: The task's primary figure at that step.
    waited: The number of evaluations since the last one that was better than all before it; a tie
      is not better. Early stopping uses it.
    plateau: The state of the plateau schedule; None with any other schedule.
    end_row: The only row of kind "train" of a run that is shorter than `log_every`, until it is
      written after the evaluation; None otherwise.
    onward: The record from which a run continues beyond this step; None if it is this record. At
      the end of a run, `rows` and the best evaluation also count entries that exist only because
      the run ends here. `onward` does not count these entries.
    is_evaluated: False if a signal broke off the evaluation of the state at this step; the run
      evaluates the state first when it continues.
  """

  rows: int = 0
  seconds: float = 0.0
  window: tuple[dict[str, float], int] = dataclasses.field(default_factory=lambda: ({}, 0))
  best_step: int | None = None
  best_value: float | None = None
  waited: int = 0
  plateau: dict[str, Any] | None = None
  end_row: dict[str, Any] | None = None
  onward: dict[str, Any] | None = None
  is_evaluated: bool = True

  def go_on(self) -> "Record":
    """Returns the record from which a run continues beyond this step, see `onward`."""
    record = self if self.onward is None else Record(**self.onward)
    return dataclasses.replace(record, seconds=self.seconds, end_row=None)

  def is_over(self, patience: int | None) -> bool:
    """Returns whether early stopping ends the run.

    Args:
      patience: The number of evaluations in a row without a new best that end a run; None without
        early stopping.
    """
    return patience is not None and self.waited >= patience

  def improve(self, step: int, value: float, mode: str, *, is_due: bool = True) -> None:
    """Makes an evaluation the best one if no earlier one was better.

    Args:
      step: The step of the evaluated state.
      value: The primary figure of the evaluation.
      mode: Whether high ("max") or low ("min") figures are good.
      is_due: Whether the evaluation counts for early stopping.
    """
    sign, best = 1 if mode == "max" else -1, self.best_value
    if is_due:
      self.waited = 0 if best is None or sign * value > sign * best else self.waited + 1
    if best is None or sign * value >= sign * best:
      self.best_step, self.best_value = step, value


class Recorder:
  """The object that averages metrics over steps, writes them to the log and keeps the `Record`.

  Attributes:
    record: The record of the run so far.
    progress: The clock of the run.
  """

  def __init__(
    self,
    experiment: Experiment,
    workdir: str,
    record: Record,
    *,
    start: int,
    write: bool,
    guard: Callable[[], None] = lambda: None,
  ):
    """Opens the log and drops the rows that are newer than `record`.

    Args:
      experiment: The experiment of this run.
      workdir: The directory of the log.
      record: A new record, or the record in the checkpoint from which the run continues.
      start: The step to begin at.
      write: Whether this process writes the log.
      guard: A function that is called before a row is written, and that raises if another training
        has taken over the workdir.
    """
    self.record = record
    self.progress = Progress(
      step=start,
      total=experiment.total_steps,
      batch_size=experiment.settings.batch_size,
      seconds=record.seconds,
    )
    self._experiment, self._guard = experiment, guard
    self._log = MetricsLog(workdir, write=write, keep=record.rows)
    self._tracking = open_tracking(experiment.settings, workdir, self._log) if write else None

  def count_step(
    self, step: int, metrics: Mapping[str, float], measured: Mapping[str, float]
  ) -> None:
    """Adds the metrics of a step to the averages, and writes a row if one is due after this step.

    A run shorter than `log_every` has one row, which is written at its end.

    Args:
      step: The number of steps done before this one.
      metrics: The metrics of the step.
      measured: The values measured on the state after the step, such as `parameter_norm`; needed
        only if a row may be due.
    """
    sums, count = self.record.window
    means = {name: value for name, value in metrics.items() if name not in NO_MEANS}
    self.record.window = ({n: sums.get(n, 0.0) + value for n, value in means.items()}, count + 1)
    total = self._experiment.total_steps
    is_only = step + 1 == total == self.record.window[1]  # the end of a run without a row
    is_due = self._experiment.is_due(step + 1, "log_every")
    if is_only or is_due:
      # Only float16 has a loss scale.
      unaveraged = {name: metrics[name] for name in NO_MEANS if name in metrics}
      row = self._make_row(step + 1, unaveraged | dict(measured))
      if is_due:
        self.record.window = ({}, 0)
        self._write(row)
      else:
        self.record.end_row = row

  def set_aside(self) -> None:
    """Keeps a copy of the record, before entries are added only because the run ends here.

    A run that is later continued uses this copy. If there is a copy already, it stays.
    """
    if self.record.onward is None:
      self.record.onward = self.snapshot() | {"end_row": None}

  def write_figures(self, role: str, step: int, figures: Figures) -> None:
    """Writes a row of the kind `role`, such as "test", with the figures of a step's evaluation."""
    self._write({"kind": role, "step": step, **figures})

  def write_end(self) -> None:
    """Writes the only row of a run shorter than `log_every`, if any, after its evaluation."""
    if self.record.end_row is not None:
      self.set_aside()
      self._write(self.record.end_row)
      self.record.end_row = None

  def snapshot(self) -> dict[str, Any]:
    """Returns the record as JSON for a checkpoint; all rows that it counts are on disk."""
    self.record.rows, self.record.seconds = self._log.rows, self.progress.seconds
    return json.loads(json.dumps(dataclasses.asdict(self.record)))

  def close(self) -> None:
    """Waits until the run's tracker, if it has one, has received all rows."""
    if self._tracking is not None:
      self._tracking.close()

  def _make_row(self, step: int, unaveraged: Mapping[str, float]) -> dict[str, Any]:
    """Returns a row of kind "train" and prints the line of progress."""
    sums, count = self.record.window
    means = {name: total / count for name, total in sums.items()}
    # JSON has no infinity, but the gradient of a skipped step in float16 may be infinite.
    finite = {name: value if math.isfinite(value) else None for name, value in unaveraged.items()}
    row = {"kind": "train", "step": step, **means, **finite}
    times = self.progress.window(step)
    words = describe(self._experiment.task.figures, means)
    epoch = float(step / self._experiment.steps_per_epoch)
    self.progress.line(step, row, words, times, epoch)
    return row | {"time": times}

  def _write(self, row: dict[str, Any]) -> None:
    self._guard()  # a log that another training has taken over gets no rows of this run
    self._log.append(row)
    self._log.flush()
    if self._tracking is not None:
      self._tracking.write(row)
