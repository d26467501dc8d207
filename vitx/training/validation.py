"""Evaluates a run's states on *validation*, which chooses the best checkpoint, and on *test*."""

import contextvars
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from vitx.config.context import assigned
from vitx.config.registry import build
from vitx.data.dataset import Examples
from vitx.runtime import evaluation, parallel
from vitx.runtime.signals import Interrupted
from vitx.tasks.figures import Figures, followed
from vitx.training import attention_entropy
from vitx.training.experiment import Experiment
from vitx.training.failures import check_finite
from vitx.training.optim.schedules import SCHEDULES, RunLength
from vitx.training.run import Run

# A function that evaluates the state at a step on a role's examples, under each of
# `evaluation.weights`; a figure that is not finite is an error.
Evaluate = Callable[[Any, int, str], Figures]
# The kind of the rows that `evaluation.on_test` adds to the log: figures on *test*, which do
# not choose a checkpoint.
SEEN = "test_seen"
# A function that gets the step and the primary figure of each evaluation that is due.
Watch = Callable[[int, float], None]
_watch: contextvars.ContextVar[Watch | None] = contextvars.ContextVar("watch", default=None)


def watching(watch: Watch | None) -> AbstractContextManager[None]:
  """Returns a context in which a function sees all evaluations; it may end a run by an error."""
  return assigned(_watch, watch)


def compile_evaluation(experiment: Experiment) -> tuple[Callable, Callable]:
  """Returns `evaluation.make_evaluate` and `attention_entropy.make_step` of an experiment."""
  what = "compiling the evaluation"

  def make() -> tuple[Callable, Callable]:
    entropies = attention_entropy.make_step(experiment.settings, what)
    return evaluation.make_evaluate(experiment.task, what), entropies

  return experiment.once("evaluation", make)


def make_evaluator(
  run: Run, program: Callable, constants: Any, examples: Callable[[str], Examples]
) -> Evaluate:
  """Returns a function `(state, step, role)` that evaluates a state and returns the figures.

  Args:
    run: The run.
    program: The evaluation step of `compile_evaluation`.
    constants: The task's constants, such as the weights of a teacher, replicated.
    examples: A function that returns the examples of a role.
  """
  task, settings, request = run.experiment.task, run.experiment.settings, run.request
  references = functools.cache(run.experiment.references)  # they read the data

  def evaluate(state: Any, step: int, role: str) -> Figures:
    with request.breakable():
      batches = request.watch(
        evaluation.show_batches(settings, task, examples(role), f"evaluating {role}")
      )
      weights = {"ema": state.params if state.ema is None else state.ema, "raw": state.params}
      params: dict[str, Any] = {name: weights[name] for name in settings.evaluation.weights}
      by_weights = evaluation.evaluate(task, program, params, state.model_state, constants, batches)
      figures = evaluation.join_figures(by_weights)
      check_finite(step, figures, what="the evaluation's ", last_good=run.last_good)
      return figures | references(role)

  return evaluate


def is_measured(experiment: Experiment, step: int) -> bool:
  """Returns whether attention entropies are measured after a step.

  If the config asks for them, they are measured whenever training metrics are logged, and at the
  end.
  """
  is_row = step == experiment.total_steps or experiment.is_due(step, "log_every")
  return is_row and experiment.settings.evaluation.attention_entropy > 0


def validate(run: Run, evaluate: Evaluate, state: Any, step: int) -> Any:
  """Evaluates a state on *validation*, and updates the best step, early stopping and the plateau.

  An evaluation may happen only because the run ends at this step, and not because one is due. If
  the run is later continued, such an evaluation leaves no row in the log, chooses no best
  checkpoint and does not count for the plateau schedule.

  Args:
    run: The run.
    evaluate: The run's evaluation function, see `make_evaluator`.
    state: The state on the devices.
    step: The number of updates that made the state.

  Returns:
    The state, whose learning rate the plateau schedule may have lowered.

  Raises:
    Interrupted: A signal broke the evaluation off; the state is saved, and is evaluated when the
      run continues.
  """
  experiment, recorder, record = run.experiment, run.recorder, run.recorder.record
  task, schedule = experiment.task, experiment.settings.schedule
  try:
    figures = evaluate(state, step, "validation")
    seen = evaluate(state, step, "test") if experiment.settings.evaluation.on_test else None
  except Interrupted:
    record.is_evaluated = False
    run.save(step, state)
    raise
  run.store.wait()
  if record.best_step not in (None, *run.store.steps()):  # the best one was deleted
    record.best_step = record.best_value = None
  is_due = experiment.is_due(step, "evaluation.every")
  if not is_due:
    recorder.set_aside()
  recorder.write_figures("validation", step, figures)
  if seen is not None:
    recorder.write_figures(SEEN, step, seen)
  recorder.progress.message(f"step {step}  validation: {experiment.describe(figures)}")
  primary = task.figures[0]
  assert primary.direction, f"the figure {primary.name} chooses the best checkpoint"
  record.improve(step, figures[primary.name], primary.direction, is_due=is_due)
  if is_due and (watch := _watch.get()) is not None:
    watch(step, figures[primary.name])
  if schedule.name == "plateau" and is_due:
    length = RunLength(experiment.total_steps, experiment.steps_per_epoch)
    plateau: Any = build(SCHEDULES, schedule, "schedule", hidden=("run",))(length)
    figure = followed(task.figures, plateau.mode)
    record.plateau = plateau.update(record.plateau, figures[figure.name])
    state = state.replace(plateau=parallel.replicate(np.float32(record.plateau["scale"])))
  recorder.write_end()
  return state


def test_best(run: Run, evaluate: Evaluate, state: Any, step: int) -> dict[str, Any]:
  """Evaluates the best checkpoint on *test*, at the end of a run whose last state is `state`.

  Returns:
    The figures, and the checkpoint's `step`.
  """
  experiment, recorder = run.experiment, run.recorder
  state, best = _restore_best(run, state, step)
  figures = evaluate(state, best, "test")
  run.store.wait()  # the row says that the run is over, so its last checkpoint must be saved
  recorder.write_figures("test", best, figures)
  recorder.progress.message(
    f"test (checkpoint {best}, {figures['examples']:,} examples): {experiment.describe(figures)}"
  )
  return {"step": best, **figures}


def _restore_best(run: Run, state: Any, step: int) -> tuple[Any, int]:
  """Restores the checkpoint with the best evaluation, or takes the last state if it is gone."""
  best, experiment = run.recorder.record.best_step, run.experiment
  if best not in (step, *run.store.steps()):  # the best was damaged and set aside
    run.recorder.progress.message(
      f"The best checkpoint, {best}, does not exist any more; the last one, {step}, is tested."
    )
    best = step
  assert best is not None
  if best != step:
    restored = run.store.restore(best, experiment.unreplicate(state))
    state = experiment.replicate(restored.state)
  return state, best
