"""The training loop. Its order is fixed: evaluate, save, step.

A checkpoint at step k holds the state after k's evaluation, so a run resumed at k neither evaluates
nor saves k again. All randomness is a function of (seed, step), so nothing else needs restoring.
"""

import collections
import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vitx.analysis import cost
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.load import initial_params
from vitx.checkpoints.store import CheckpointStore
from vitx.data.sources import Examples
from vitx.training import cache, compilation, evaluation, parallel, provenance
from vitx.training.distributed import is_writer
from vitx.training.durations import due
from vitx.training.failures import StopRequest, check_finite, explain_out_of_memory
from vitx.training.log import MetricsLog, TensorBoard
from vitx.training.plateau import Plateau
from vitx.training.progress import Progress
from vitx.training.setup import Experiment, make_experiment

IN_FLIGHT = 2  # unbounded dispatch deadlocks XLA's collectives between virtual CPU devices
# What a step returns that is not averaged over the steps between two rows of kind "train".
NO_MEANS = ("gradient_norm", "learning_rate", "stop")


@dataclasses.dataclass(frozen=True)
class Result:
  """How a run ended.

  Attributes:
    workdir: where everything lies.
    step: the last step done.
    finished: False if a signal ended it before its time; the same command goes on.
    report: figures on the report split of the best checkpoint, if finished.
  """

  workdir: str
  step: int
  finished: bool
  report: dict[str, Any] | None = None


@dataclasses.dataclass
class Record:
  """What a checkpoint knows besides the state; JSON.

  Attributes:
    rows: of `metrics.jsonl` that stand at this step.
    seconds: trained so far, over all runs.
    window: sums of the loss and the task's metrics since the last row of kind "train", and the
      number of steps.
    best_step, best_top1: the best evaluation on *select* so far; a tie goes to the later.
    plateau: state of the plateau schedule, if that is the schedule.
  """

  rows: int = 0
  seconds: float = 0.0
  window: tuple[dict[str, float], int] = dataclasses.field(default_factory=lambda: ({}, 0))
  best_step: int | None = None
  best_top1: float = -1.0
  plateau: dict[str, Any] | None = None


def train(config: ConfigDict, workdir: str | Path, *, dry_run: bool = False) -> Result:
  """Trains as the config says, or goes on where the workdir stands.

  Args:
    config: of `get_config`.
    workdir: a directory or a URL such as `gs://...`; created if absent.
    dry_run: compile, print parameters, memory and seconds per step, and return; writes nothing.

  Returns:
    How the run ended.

  Raises:
    ConfigError: a setting cannot work; nothing was compiled or changed.
    NonFiniteError: the loss is not finite; the last checkpoint stands.
    OutOfMemoryError: names what needs the memory and what helps.
    CheckpointError: a checkpoint could not be written; the last one stands.
  """
  cache.enable()
  experiment = make_experiment(config)
  config = experiment.config
  tensorboard = None
  if not dry_run:
    provenance.check_same_run(workdir, config)
    wd.check_writable(workdir)
    wd.check_space(workdir, cost.tree_bytes(experiment.shapes), config.checkpoint.keep)
    tensorboard = TensorBoard(workdir) if config.tensorboard and is_writer() else None
  with explain_out_of_memory(config, experiment.tokens):
    state = experiment.init_state()
    if dry_run:
      state = parallel.replicate(state)
      compilation.dry_run(experiment, state)
      return Result(str(workdir), 0, False)
    with CheckpointStore(wd.checkpoints(workdir), keep=config.checkpoint.keep) as store:
      run = _Run(experiment, workdir, store, tensorboard)
      result = run.to_the_end(state)
  if tensorboard is not None:
    tensorboard.close()
  return result


class _Run:
  """One process's part of a run: the pieces of the loop and what they share."""

  def __init__(
    self,
    experiment: Experiment,
    workdir: str | Path,
    store: CheckpointStore,
    tensorboard: TensorBoard | None,
  ):
    self.experiment, self.config = experiment, experiment.config
    self.workdir, self.store, self.tensorboard = str(workdir), store, tensorboard
    self.evaluate_step = evaluation.make_evaluate(experiment.task)
    self.record = Record()
    self.in_flight: collections.deque = collections.deque()
    self.learning_rate = 0.0
    self.stop = False
    self.kept: dict[str, Examples] = {}
    self.log: MetricsLog
    self.progress: Progress

  def to_the_end(self, state: Any) -> Result:
    """The loop, stopped early by a signal to any of the processes."""
    total = self.experiment.total_steps
    state, start = self.restore(state)
    self.progress = Progress(
      step=start,
      total=total,
      batch_size=self.config.batch_size,
      seconds=self.record.seconds,
    )
    state, step = parallel.replicate(state), start
    if start < total:
      with StopRequest() as request:
        state, step = self.steps(state, start, request)
    if step < total:
      return Result(self.workdir, step, False)
    return Result(self.workdir, step, True, self.report(state, step))

  def steps(self, state: Any, start: int, request: StopRequest) -> tuple[Any, int]:
    """Evaluates, saves and steps, in this order; returns the state and where it stands."""
    config, total = self.config, self.experiment.total_steps
    # Decoded before compiling: an unreadable image is named at once.
    batches = self.experiment.batches()
    self.kept = {role: self.experiment.kept(role) for role in ("select", "report")}
    step_function = compilation.compile_step(self.experiment, state)
    self.progress.begin()
    stream = self.progress.timed(batches.iterate(start, total))
    for step in range(start, total + 1):
      if step != start:
        if step == total or self.due(step, config.evaluation.every):
          state = self.evaluate(state, step)
        last_or_best = step == total or self.record.best_step == step
        if last_or_best or self.stop or self.due(step, config.checkpoint.every):
          self.save(state, step)
      if step == total or self.stop:
        break
      batch = next(stream)
      batch["stop"] = np.full(jax.local_device_count(), request.received is not None, np.int32)
      if len(self.in_flight) == IN_FLIGHT:
        self.settle()
      with jax.profiler.StepTraceAnnotation("train", step_num=step):
        state, metrics = step_function(state, parallel.split(batch))
      self.in_flight.append((step, metrics))
    return state, step

  def restore(self, state: Any) -> tuple[Any, int]:
    """The newest good checkpoint, or a new run's beginning; cuts the workdir back to it."""
    restored = self.store.restore_latest(jax.tree.map(np.asarray, state))
    start = 0
    if restored is not None:
      state, start = restored.state, restored.step
      known = {field.name for field in dataclasses.fields(Record)}
      self.record = Record(**{key: restored.record[key] for key in known})
      print(f"resuming {self.workdir} at step {start}", flush=True)
    elif self.config.init_from:
      params = initial_params(self.config.init_from, state.params)
      ema = None if state.ema is None else jax.tree.map(np.copy, params)
      state = state.replace(params=params, ema=ema)
    data = provenance.describe_data(self.experiment.source)
    if restored is not None:
      provenance.check_same_data(self.workdir, data)
    if is_writer():
      wd.write_json(self.workdir, "config.json", wd.plain(self.config))
      environment = provenance.environment(data, self.experiment.implementations())
      wd.write_json(self.workdir, "environment.json", environment)
    self.log = MetricsLog(self.workdir, write=is_writer(), keep=self.record.rows)
    return state, start

  def due(self, step: int, every: str) -> bool:
    return due(step, every, self.experiment.steps_per_epoch)

  def settle(self, *, everything: bool = False) -> None:
    """Waits for the oldest step under way (or all): checks its loss and counts it."""
    while self.in_flight:
      step, metrics = self.in_flight.popleft()
      values = {name: float(np.asarray(x.addressable_data(0))[0]) for name, x in metrics.items()}
      check_finite(step, values, half=self.experiment.step.half, kept=self.store.latest)
      self.stop |= bool(values["stop"])
      self.learning_rate = values["learning_rate"]
      sums, count = self.record.window
      means = {name: value for name, value in values.items() if name not in NO_MEANS}
      self.record.window = ({n: sums.get(n, 0.0) + value for n, value in means.items()}, count + 1)
      if self.due(step + 1, self.config.log_every):
        self.log_window(step + 1)
      if not everything:
        return

  def log_window(self, step: int) -> None:
    """Writes the mean loss and metrics since the last such row."""
    sums, count = self.record.window
    self.record.window = ({}, 0)
    row = {
      "kind": "train",
      "step": step,
      **{name: total / count for name, total in sums.items()},
      "learning_rate": self.learning_rate,
    }
    times = self.progress.window(step)
    self.progress.line(step, row, times, float(step / self.experiment.steps_per_epoch))
    self.write(row | {"time": times})

  def write(self, row: dict[str, Any]) -> None:
    self.log.append(row)
    self.log.flush()
    if self.tensorboard is not None:
      self.tensorboard.write({**row.get("time", {}), **row})

  def evaluate(self, state: Any, step: int) -> Any:
    """Evaluates on *select*; moves the best and the plateau schedule."""
    self.settle(everything=True)
    figures = self.figures(state, "select")
    self.write({"kind": "select", "step": step, **figures})
    if figures["top1"] >= self.record.best_top1:
      self.record.best_step, self.record.best_top1 = step, figures["top1"]
    self.progress.message(
      f"step {step}  select: top-1 {figures['top1']:.2%}  top-5 {figures['top5']:.2%}"
      f"  nll {figures['nll']:.4f}"
    )
    if self.config.schedule.name != "plateau":
      return state
    plateau = Plateau.from_config(self.config.schedule, self.record.plateau)
    plateau = plateau.update(figures["nll" if plateau.mode == "min" else "top1"])
    self.record.plateau = plateau.to_dict()
    return state.replace(plateau=parallel.replicate(np.float32(plateau.scale)))

  def save(self, state: Any, step: int) -> None:
    """Saves if all steps so far were finite. The rows that the checkpoint counts are on disk."""
    self.settle(everything=True)
    self.record.rows, self.record.seconds = self.log.rows, self.progress.seconds
    record = dataclasses.asdict(self.record)
    self.store.save(step, parallel.unreplicate(state), record, best_step=self.record.best_step)

  def report(self, state: Any, step: int) -> dict[str, Any]:
    """Touches the *report* split once, with the best checkpoint by *select*."""
    best = self.record.best_step
    if best not in (step, *self.store.steps()):  # it was damaged and set aside
      self.progress.message(f"the best checkpoint, {best}, is gone; reporting the last, {step}")
      best = step
    if best != step:
      restored = self.store.restore(best, parallel.unreplicate(state))
      state = parallel.replicate(restored.state)
    figures = self.figures(state, "report")
    self.write({"kind": "report", "step": best, **figures})
    self.progress.message(
      f"report (checkpoint {best}, {figures['examples']:,} examples): top-1 {figures['top1']:.2%}"
      f"  top-5 {figures['top5']:.2%}  nll {figures['nll']:.4f}"
    )
    return {"step": best, **figures}

  def figures(self, state: Any, role: str) -> dict[str, Any]:
    examples = self.kept[role] if role in self.kept else self.experiment.source.role(role)
    batches = evaluation.split_batches(self.config, examples)
    return evaluation.evaluate(self.evaluate_step, state.averaged, state.model_state, batches)
