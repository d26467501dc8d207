"""The training loop. Its order is fixed: evaluate, save, step.

A checkpoint at step k holds the state after k's evaluation, so a run resumed at k neither evaluates
nor saves k again. All randomness is a function of (seed, step), so nothing else needs restoring.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vitx.analysis import cost
from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.directory import Directory
from vitx.checkpoints.load import check_source, initial_variables
from vitx.checkpoints.store import CheckpointStore
from vitx.data.dataset import Examples
from vitx.ops.implementation import choosing_by
from vitx.tasks.base import Figures
from vitx.training import cache, compilation, evaluation, parallel, provenance
from vitx.training.distributed import is_writer
from vitx.training.failures import (
  StopRequest,
  check_figures,
  check_finite,
  explain_out_of_memory,
)
from vitx.training.in_flight import InFlight
from vitx.training.log import TensorBoard
from vitx.training.plateau import Plateau
from vitx.training.recorder import Record, Recorder
from vitx.training.setup import Experiment, make_experiment

# Evaluates the state at a step on a role's examples, under each of `config.evaluation.weights`; a
# figure that is not finite is an error.
Evaluate = Callable[[Any, int, str], Figures]


@dataclasses.dataclass(frozen=True)
class Result:
  """How a run ended.

  Attributes:
    workdir: where everything lies.
    step: the last step done.
    finished: False if a signal ended it before its time; the same command goes on.
    test: figures of the best checkpoint on the test examples, and its step; None if not finished.
  """

  workdir: str
  step: int
  finished: bool
  test: dict[str, Any] | None = None


def train(
  config: ConfigDict, workdir: str | Path, *, dry_run: bool = False, trust_code: bool = False
) -> Result:
  """Trains as the config says, or goes on where the workdir stands.

  Args:
    config: of `get_config`.
    workdir: a directory or a URL such as `gs://...`; created if absent.
    dry_run: compile, print parameters, memory and seconds per step, and return; writes nothing.
    trust_code: whether code that the config of `init_from`, or of a teacher, names may be imported.

  Returns:
    How the run ended.

  Raises:
    ConfigError: a setting cannot work, or another training holds the workdir; nothing was compiled
      or changed.
    NonFiniteError: the loss or an evaluation is not finite; the last checkpoint stands.
    OutOfMemoryError: names what needs the memory and what helps.
    CheckpointError: a checkpoint could not be written; the last one stands.
  """
  cache.enable()
  with choosing_by(provenance.keep_rule(workdir)):
    return _train(config, str(workdir), dry_run, trust_code)


def _train(config: ConfigDict, workdir: str, dry_run: bool, trust_code: bool) -> Result:
  """Trains by the rule of "auto" that is in force, see `train`."""
  experiment = make_experiment(config, trust_code=trust_code)
  config = experiment.config
  if config.init_from and (dry_run or not Directory(wd.locate_checkpoints(workdir)).steps()):
    # Before anything is written; the weights themselves are read when there is a state to fill.
    shapes, layout = experiment.named_shapes(), experiment.task.token_layout()
    check_source(config.init_from, shapes.params, shapes.model_state, layout, **_fitting(config))
  if not dry_run:
    provenance.check_same_run(workdir, config)
    wd.check_writable(workdir)
    wd.check_space(workdir, cost.tree_bytes(experiment.shapes), config.checkpoint.keep)
  out_of_memory = explain_out_of_memory(config, experiment.tokens(), "" if dry_run else workdir)
  with lock.hold(workdir, unless=dry_run) as held, out_of_memory:
    writes = is_writer() and not dry_run
    tensorboard = TensorBoard(workdir) if config.tensorboard and writes else None
    state = experiment.init_state()
    if dry_run:
      compilation.dry_run(experiment, experiment.replicate(state))
      return Result(workdir, 0, False)
    with CheckpointStore(wd.locate_checkpoints(workdir), keep=config.checkpoint.keep) as store:
      state, start, record = _begin(experiment, workdir, store, state, trust_code)
      recorder = Recorder(
        experiment, workdir, record, start=start, write=is_writer(), tensorboard=tensorboard
      )
      result = _run(experiment, workdir, held, store, recorder, experiment.replicate(state), start)
    recorder.close()
  return result


def _run(
  experiment: Experiment,
  workdir: str,
  held: lock.Lock,
  store: CheckpointStore,
  recorder: Recorder,
  state: Any,
  start: int,
) -> Result:
  """Runs evaluation, saving and step, in this order, to the end or a signal to any process."""
  config, total, step = experiment.config, experiment.total_steps, start
  constants = parallel.replicate(experiment.constants)
  examples = functools.cache(experiment.keep)
  evaluate = _make_evaluate(experiment, store, constants, examples)

  def finish(step: int, metrics: dict[str, float]) -> None:
    check_finite(step, metrics, half=experiment.step.half, kept=lambda: _last_good(store))
    recorder.count_step(step, metrics)

  in_flight = InFlight(finish)
  if start < total:
    # Read before compiling: an example that cannot be read is named at once.
    batches = experiment.batches()
    for role in ("validation", "test"):
      examples(role)
    program = compilation.compile_steps(experiment, state, constants)
    recorder.progress.begin()
    stream = recorder.progress.timed(batches.iterate(start, total))
    with StopRequest() as request:
      while True:
        is_new, is_last = step > start, step == total
        if is_new and (is_last or experiment.is_due(step, config.evaluation.every)):
          in_flight.wait()
          state = _validate(experiment, recorder, evaluate, state, step)
        is_best = recorder.record.best_step == step
        is_due = experiment.is_due(step, config.checkpoint.every)
        if is_new and (is_last or is_best or is_due or in_flight.stop):
          in_flight.wait()
          held.check()
          store.save(
            step,
            experiment.unreplicate(state),
            recorder.snapshot(),
            best_step=recorder.record.best_step,
          )
        if is_last or in_flight.stop:
          break
        steps = range(step, experiment.next_event(step, program.steps))
        fed = [next(stream) for _ in steps]
        in_flight.make_room()
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
          state, metrics, stop = program(state, constants, fed, request.received is not None)
        in_flight.add(steps, metrics, stop)
        step = steps.stop
  if step < total:
    return Result(workdir, step, False)
  state, best = _restore_best(experiment, store, recorder, state, step)
  figures = evaluate(state, best, "test")
  recorder.write_figures("test", best, figures)
  recorder.progress.message(
    f"test (checkpoint {best}, {figures['examples']:,} examples): {experiment.describe(figures)}"
  )
  return Result(workdir, step, True, {"step": best, **figures})


def _begin(
  experiment: Experiment, workdir: str, store: CheckpointStore, state: Any, trust_code: bool
) -> tuple[Any, int, Record]:
  """Returns state, step and record of the newest good checkpoint, or of a new run's beginning."""
  config, record, start = experiment.config, Record(), 0
  data = provenance.describe_data(experiment.source)
  restored = store.restore_latest(jax.tree.map(np.asarray, state))
  if restored is not None:
    provenance.check_same_data(workdir, data)
    state, start = restored.state, restored.step
    record = Record.from_json(restored.record)
    print(f"resuming {workdir} at step {start}", flush=True)
  elif config.init_from:
    params, model_state = initial_variables(
      config.init_from,
      state.params,
      state.model_state,
      experiment.task.token_layout(),
      **_fitting(config),
      trust_code=trust_code,
    )
    ema = None if state.ema is None else jax.tree.map(np.copy, params)
    state = state.replace(params=params, model_state=model_state, ema=ema)
  if is_writer():
    wd.write_json(workdir, "config.json", wd.to_plain(config))
    environment = provenance.environment(data, experiment.implementations())
    wd.write_json(workdir, "environment.json", environment)
  return state, start, record


def _fitting(config: ConfigDict) -> dict[str, Any]:
  """Returns what a config says of how far published weights must fit."""
  mixer = config.model.get("token_mixer", "")
  return {
    "allowed": config.init_from_except,
    "mixer": mixer if isinstance(mixer, str) else mixer.name,
  }


def _make_evaluate(
  experiment: Experiment,
  store: CheckpointStore,
  constants: Any,
  examples: Callable[[str], Examples],
) -> Evaluate:
  task, config = experiment.task, experiment.config
  references = functools.cache(experiment.references)  # they read the data
  evaluate_step = evaluation.make_evaluate(task)

  def evaluate(state: Any, step: int, role: str) -> Figures:
    batches = evaluation.split_batches(config, task, examples(role))
    params = evaluation.choose_params(state, config.evaluation.weights)
    arguments = (params, state.model_state, constants)
    each = evaluation.evaluate_each(task, evaluate_step, *arguments, batches)
    figures = evaluation.join_figures(each)
    check_figures(step, figures, kept=lambda: _last_good(store))
    return figures | references(role)

  return evaluate


def _last_good(store: CheckpointStore) -> int | None:
  """Returns the step of the newest checkpoint, the one being written included."""
  store.wait()
  return store.latest()


def _validate(
  experiment: Experiment,
  recorder: Recorder,
  evaluate: Evaluate,
  state: Any,
  step: int,
) -> Any:
  """Evaluates on *validation*, moves the best, and returns the state with the plateau's rate."""
  task, schedule, record = experiment.task, experiment.config.schedule, recorder.record
  figures = evaluate(state, step, "validation")
  recorder.write_figures("validation", step, figures)
  recorder.progress.message(f"step {step}  validation: {experiment.describe(figures)}")
  record.improve(step, figures[task.primary], task.mode)
  if schedule.name != "plateau":
    return state
  plateau = Plateau.from_config(schedule, record.plateau)
  plateau = plateau.update(figures[task.plateau_figure(plateau.mode)])
  record.plateau = plateau.to_dict()
  return state.replace(plateau=parallel.replicate(np.float32(plateau.scale)))


def _restore_best(
  experiment: Experiment, store: CheckpointStore, recorder: Recorder, state: Any, step: int
) -> tuple[Any, int]:
  """Returns the state that validated best, and its step; the last where that one is damaged."""
  best = recorder.record.best_step
  if best not in (step, *store.steps()):  # it was damaged and set aside
    recorder.progress.message(f"the best checkpoint, {best}, is gone; testing the last, {step}")
    best = step
  assert best is not None
  if best != step:
    restored = store.restore(best, experiment.unreplicate(state))
    state = experiment.replicate(restored.state)
  return state, best
