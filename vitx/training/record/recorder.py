"""The record of a run while it trains: windows, rows of metrics, lines on the console."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from vitx.tasks.base import Figures
from vitx.training.experiment import Experiment
from vitx.training.record.log import MetricsLog
from vitx.training.record.progress import Progress
from vitx.training.record.tracking import Tracking

# Metrics of a step that are not averaged over the steps between two rows of kind "train".
NO_MEANS = ("learning_rate", "gradient_norm")


@dataclasses.dataclass
class Record:
  """The contents of a checkpoint besides the state, as JSON values.

  Attributes:
    rows: The number of rows of `metrics.jsonl` up to this step.
    seconds: The seconds of training so far, over all runs.
    window: The sums of the loss and the task's metrics since the last row of kind "train", and the
      number of steps.
    best_step: The step of the best evaluation on *validation* so far; a tie goes to the later.
    best_value: The task's primary figure at that step.
    waited: The number of evaluations in a row, up to the last, that were not better than the best
      before them; a tie is not better.
    plateau: The state of the plateau schedule, if that is the schedule.
    end_row: The only row of kind "train" of a run that is shorter than `log_every`, until it is
      written after the evaluation.
    onward: The record with which a run continues beyond this step; None if it is this record. At a
      run's end, `rows` and the best also count entries that exist only because the run ends.
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

  @classmethod
  def from_json(cls, stored: Mapping[str, Any]) -> "Record":
    """Returns the record that `Recorder.snapshot` made."""
    # Records of earlier versions lack these fields.
    stored = {"end_row": None, "onward": None, "waited": 0, **stored}
    return cls(**{field.name: stored[field.name] for field in dataclasses.fields(cls)})

  def go_on(self) -> "Record":
    """Returns the record of a run that continues beyond this step, whatever stopped it here."""
    record = self if self.onward is None else self.from_json(self.onward)
    return dataclasses.replace(record, seconds=self.seconds, end_row=None)

  def wait(self, value: float, mode: str) -> None:
    """Counts the evaluations in a row without a new best one; call it before `improve`."""
    best = self.best_value
    is_better = best is None or (value > best if mode == "max" else value < best)
    self.waited = 0 if is_better else self.waited + 1

  def is_over(self, patience: int | None) -> bool:
    """Returns whether the run ends early, after `patience` evaluations that were not better."""
    return patience is not None and self.waited >= patience

  def improve(self, step: int, value: float, mode: str) -> None:
    """Makes an evaluation the best one if none was better."""
    best = self.best_value
    if best is None or (value >= best if mode == "max" else value <= best):
      self.best_step, self.best_value = step, value


class Recorder:
  """The recorder of a run, which sums the steps between two rows, writes rows and keeps the record.

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
    track: Callable[[MetricsLog], Tracking | None] = lambda log: None,
    guard: Callable[[], None] = lambda: None,
  ):
    """Opens the log and cuts it back to the rows that the record counts.

    Args:
      experiment: The experiment of this run.
      workdir: The directory of the log.
      record: A new record, or the record of the checkpoint from which the run continues.
      start: The step to begin at.
      write: Whether this process writes.
      track: A function that gets the log, once it is cut back, and returns a `Tracking`, which
        then also gets the rows, or None.
      guard: A function that is called before a row is written; it raises if another training has
        taken over.
    """
    self.record = record
    self.progress = Progress(
      step=start,
      total=experiment.total_steps,
      batch_size=experiment.config.batch_size,
      seconds=record.seconds,
    )
    self._experiment, self._guard = experiment, guard
    self._log = MetricsLog(workdir, write=write, keep=record.rows)
    self._tracking = track(self._log) if write else None

  def count_step(
    self, step: int, metrics: Mapping[str, float], measured: Mapping[str, float]
  ) -> None:
    """Adds the metrics of a step to the window; writes a row if one is due.

    A run shorter than `log_every` has one row, at its end.

    Args:
      step: The number of steps done before this one.
      metrics: The metrics of the step.
      measured: The figures of the state after the step; needed only if a row may be due.
    """
    sums, count = self.record.window
    means = {name: value for name, value in metrics.items() if name not in NO_MEANS}
    self.record.window = ({n: sums.get(n, 0.0) + value for n, value in means.items()}, count + 1)
    total = self._experiment.total_steps
    is_only = step + 1 == total == self.record.window[1]  # the end of a run without a row
    is_due = self._experiment.is_due(step + 1, self._experiment.config.log_every)
    if is_only or is_due:
      own = {name: metrics[name] for name in NO_MEANS}
      row = self._make_row(step + 1, own | dict(measured))
      if is_due:
        self.record.window = ({}, 0)
        self._write(row)
      else:
        self.record.end_row = row

  def set_aside(self) -> None:
    """Keeps a copy of the record for a run that continues, without the entries of a run's end."""
    if self.record.onward is None:
      self.record.onward = self.snapshot() | {"end_row": None}

  def write_figures(self, role: str, step: int, figures: Figures) -> None:
    """Writes the row of an evaluation of the checkpoint at `step`."""
    self._write({"kind": role, "step": step, **figures})

  def write_end(self) -> None:
    """Writes the row that exists only because a run ends, if any, after the evaluation."""
    if self.record.end_row is not None:
      self.set_aside()
      self._write(self.record.end_row)
      self.record.end_row = None

  def snapshot(self) -> dict[str, Any]:
    """Returns the record as it is now; the rows that it counts are on disk."""
    self.record.rows, self.record.seconds = self._log.rows, self.progress.seconds
    return json.loads(json.dumps(dataclasses.asdict(self.record)))

  def close(self) -> None:
    """Waits until everything is written."""
    if self._tracking is not None:
      self._tracking.close()

  def _make_row(self, step: int, own: Mapping[str, float]) -> dict[str, Any]:
    """Returns a row of the window's means and the step's own figures, and prints its line."""
    sums, count = self.record.window
    means = {name: total / count for name, total in sums.items()}
    # JSON has no infinity, but the gradient of a skipped step in float16 may be infinite.
    finite = {name: value if math.isfinite(value) else None for name, value in own.items()}
    row = {"kind": "train", "step": step, **means, **finite}
    times = self.progress.window(step)
    words = self._experiment.task.describe_step(means)
    epoch = float(step / self._experiment.steps_per_epoch)
    self.progress.line(step, row, words, times, epoch)
    return row | {"time": times}

  def _write(self, row: dict[str, Any]) -> None:
    self._guard()  # a log that another training has taken over gets no rows of this one
    self._log.append(row)
    self._log.flush()
    if self._tracking is not None:
      self._tracking.write(row)
