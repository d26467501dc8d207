"""A run under way: its evaluations choose the best checkpoint."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.store import CheckpointStore
from vitx.data.dataset import Examples
from vitx.tasks.base import Figures
from vitx.training import attention_entropy, evaluation, parallel, unevaluated
from vitx.training.beginning import Beginning, begin
from vitx.training.distributed import is_writer
from vitx.training.failures import Interrupted, StopRequest, check_figures
from vitx.training.optim.plateau import Plateau
from vitx.training.record.progress import SOON, announce, show_bar
from vitx.training.record.recorder import Recorder
from vitx.training.record.tracking import open_tracking
from vitx.training.setup import Experiment

# Evaluates the state at a step on a role's examples, under each of `config.evaluation.weights`; a
# figure that is not finite is an error.
Evaluate = Callable[[Any, int, str], Figures]


# The kind of rows of `config.evaluation.on_test`: figures of *test* that choose nothing.
SEEN = "test_seen"


@dataclasses.dataclass(frozen=True)
class Programs:
  """What evaluates the states of runs; compiled when it is used.

  Attributes:
    evaluate: the evaluation step, see `evaluation.make_evaluate`.
    entropy: see `attention_entropy.make_step`.
  """

  evaluate: Callable
  entropy: Callable


@dataclasses.dataclass(frozen=True)
class Run:
  """A run in its workdir.

  Attributes:
    experiment: that is run.
    workdir: of the run.
    held: the lock on it.
    request: to end before time.
    store: of the checkpoints.
    recorder: of what is said and written.
  """

  experiment: Experiment
  workdir: str
  held: lock.Lock
  request: StopRequest
  store: CheckpointStore
  recorder: Recorder

  def save(self, step: int, state: Any) -> None:
    """Saves a state of the devices as the checkpoint of a step."""
    self.held.check()
    record = self.recorder.record
    bests = (record.best_step, record.go_on().best_step)
    stay = [best for best in bests if best is not None]
    state = self.experiment.unreplicate(state)
    self.store.save(step, state, self.recorder.snapshot(), stay=stay)


@contextlib.contextmanager
def open_run(
  experiment: Experiment,
  workdir: str,
  held: lock.Lock,
  request: StopRequest,
  trust_code: bool,
) -> Iterator[tuple[Run, Beginning]]:
  """Opens a run in a workdir that is its own, from what is saved there or anew.

  Args:
    experiment: that is run.
    workdir: of the run.
    held: the lock on it.
    request: to end before time.
    trust_code: whether code that the config of `init_from` names may be imported.

  Yields:
    The run, and where it begins.

  Raises:
    Interrupted: a signal came before it had begun.
  """
  config = experiment.config

  def initialize() -> Any:
    with request.breakable():
      return announce("initializing", lambda: experiment.init_state(request.run), patience=SOON)

  with CheckpointStore(wd.locate_checkpoints(workdir), keep=config.checkpoint.keep) as store:
    begun = begin(experiment, workdir, store, initialize, trust_code)
    recorder = Recorder(
      experiment,
      workdir,
      begun.record,
      start=begun.step,
      write=is_writer(),
      track=functools.partial(open_tracking, config, workdir),
      guard=held.check,
    )
    with contextlib.closing(recorder):
      yield Run(experiment, workdir, held, request, store, recorder), begun


def compile_evaluation(experiment: Experiment, request: StopRequest) -> Programs:
  """Returns what evaluates states; runs that differ in no shape can share it."""

  def compile_step(work: Callable[[], Any]) -> Any:
    return announce("compiling the evaluation", lambda: request.run(work), patience=SOON)

  config = experiment.config
  return Programs(
    evaluation.make_evaluate(experiment.task, compile_step),
    attention_entropy.make_step(config, compile_step),
  )


def make_evaluate(
  run: Run, programs: Programs, constants: Any, examples: Callable[[str], Examples]
) -> Evaluate:
  """Returns how a run evaluates its states.

  Args:
    run: whose states they are.
    programs: of `compile_evaluation`.
    constants: of the task, replicated.
    examples: of each role.
  """
  task, config, request = run.experiment.task, run.experiment.config, run.request
  references = functools.cache(run.experiment.references)  # they read the data

  def evaluate(state: Any, step: int, role: str) -> Figures:
    with request.breakable():
      batches = request.watch(
        show_bar(
          evaluation.split_batches(config, task, examples(role)),
          f"evaluating {role}",
          evaluation.count_batches(config, len(examples(role))),
        )
      )
      params = evaluation.choose_params(state, config.evaluation.weights)
      arguments = (params, state.model_state, constants)
      each = evaluation.evaluate_each(task, programs.evaluate, *arguments, batches)
      figures = evaluation.join_figures(each)
      check_figures(step, figures, kept=lambda: last_good(run.store))
      return figures | references(role)

  return evaluate


def is_measured(experiment: Experiment, step: int) -> bool:
  """Returns whether the attention entropy at a step may go into a row of kind "train"."""
  config = experiment.config
  is_row = step == experiment.total_steps or experiment.is_due(step, config.log_every)
  return is_row and config.evaluation.attention_entropy > 0


def validate(run: Run, evaluate: Evaluate, state: Any, step: int) -> Any:
  """Evaluates on *validation*, moves the best, and returns the state with the plateau's rate.

  What is not due is evaluated for the sake of a run's end: a run that goes on beyond it, since it
  was stopped there or is lengthened, neither has the row nor knows of the best, and its plateau
  does not hear of it.

  Raises:
    Interrupted: a signal broke it off; the state is saved, to be evaluated when the run goes on.
  """
  experiment, recorder, record = run.experiment, run.recorder, run.recorder.record
  task, schedule = experiment.task, experiment.config.schedule
  try:
    figures = evaluate(state, step, "validation")
    seen = evaluate(state, step, "test") if experiment.config.evaluation.on_test else None
  except Interrupted:
    run.held.check()
    unevaluated.save(run.workdir, step, experiment.unreplicate(state), recorder.snapshot())
    raise
  run.store.wait()
  if record.best_step not in (None, *run.store.steps()):  # somebody deleted it
    record.best_step = record.best_value = None
  is_due = experiment.is_due(step, experiment.config.evaluation.every)
  if not is_due:
    recorder.set_aside()
  recorder.write_figures("validation", step, figures)
  if seen is not None:
    recorder.write_figures(SEEN, step, seen)
  recorder.progress.message(f"step {step}  validation: {experiment.describe(figures)}")
  record.improve(step, figures[task.primary], task.mode)
  if schedule.name == "plateau" and is_due:
    plateau = Plateau.from_config(schedule, record.plateau)
    plateau = plateau.update(figures[task.plateau_figure(plateau.mode)])
    record.plateau = plateau.to_dict()
    state = state.replace(plateau=parallel.replicate(np.float32(plateau.scale)))
  recorder.write_end()
  return state


def test_best(run: Run, evaluate: Evaluate, state: Any, step: int) -> dict[str, Any]:
  """Evaluates the best checkpoint on *test*, the end of a run at `step`.

  Returns:
    The figures, and `step` of the checkpoint.
  """
  experiment, recorder = run.experiment, run.recorder
  state, best = _restore_best(experiment, run.store, recorder, state, step)
  figures = evaluate(state, best, "test")
  run.store.wait()  # the row says that the run is over: not before its last checkpoint stands
  recorder.write_figures("test", best, figures)
  recorder.progress.message(
    f"test (checkpoint {best}, {figures['examples']:,} examples): {experiment.describe(figures)}"
  )
  unevaluated.remove(run.workdir)
  return {"step": best, **figures}


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


def last_good(store: CheckpointStore) -> int | None:
  """Returns the step of the newest checkpoint, the one being written included."""
  store.wait()
  return store.latest()
