"""The training loop. Its order is fixed: evaluate, save, step.

A checkpoint at step k holds the state after k's evaluation, so a run resumed at k neither evaluates
nor saves k again. All randomness is a function of (seed, step), so nothing else needs restoring.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from vitx.checkpoints import workdir as wd
from vitx.ops.implementation import choosing_by
from vitx.runtime import cache, parallel
from vitx.runtime.progress import SOON, announce
from vitx.runtime.signals import Interrupted, StopRequest
from vitx.training import compilation, resident
from vitx.training.attention_entropy import make_measure
from vitx.training.experiment import make_experiment
from vitx.training.failures import check_finite, explain_out_of_memory
from vitx.training.in_flight import LIMIT, InFlight
from vitx.training.record import provenance
from vitx.training.restore import check_beginning
from vitx.training.run import Run, open_run
from vitx.training.step import TrainState
from vitx.training.validation import (
  compile_evaluation,
  is_measured,
  make_evaluator,
  test_best,
  validate,
)


@dataclasses.dataclass(frozen=True)
class Result:
  """The outcome of a run.

  Attributes:
    workdir: The directory that holds the run's files.
    step: The number of steps done.
    finished: False if a signal ended the run early; the same command continues it.
    test: The figures of the best checkpoint on the test examples, and its step; None if the run is
      not finished, or was a dry run.
  """

  workdir: str
  step: int
  finished: bool
  test: dict[str, Any] | None = None


def train(config: Mapping[str, Any], workdir: str | Path, *, dry_run: bool = False) -> Result:
  """Trains a config in a workdir, or continues the run that is saved there.

  The config of a teacher, or of the run in `init_from`, may name Python code, which is imported
  only as `registry.trusting` allows.

  The arguments are those of `phases.train`. A dry run takes zeros for the weights of a teacher.

  Raises:
    ConfigError: A setting cannot work; nothing was compiled or changed.
    NonFiniteError: The loss or an evaluation is not finite; the last checkpoint is kept.
    OutOfMemoryError: The memory is too small; the message names the settings that need it and a
      command that helps.
    CheckpointError: A checkpoint could not be written; the last one is kept.
  """
  cache.enable()
  workdir = str(workdir)
  with choosing_by(provenance.choose_rule(workdir)), StopRequest() as request:
    try:
      with request.breakable():
        recorded = wd.find_data(workdir)
        experiment = make_experiment(config, is_trial=dry_run, recorded=recorded)
        check_beginning(experiment, workdir, writes=not dry_run)
      place = "" if dry_run else workdir
      with explain_out_of_memory(experiment.settings, experiment.tokens, place):
        if not dry_run:
          with open_run(experiment, workdir, request) as run:
            return _train(run)
        with request.breakable():
          compilation.dry_run(experiment)
        return Result(workdir, 0, True)
    except Interrupted:
      step = 0 if dry_run else max(wd.list_steps(workdir), default=0)
      return Result(workdir, step, False)


def _train(run: Run) -> Result:
  """Evaluates, saves and steps, in this order, until the run ends or a process gets a signal."""
  experiment, recorder, request, start = run.experiment, run.recorder, run.request, run.start
  total, step = experiment.total_steps, start.step
  constants = parallel.replicate(experiment.constants)
  examples = functools.cache(experiment.load_examples)
  evaluation_program, entropy_program = compile_evaluation(experiment)
  evaluate = make_evaluator(run, evaluation_program, constants, examples)

  def load_state() -> TrainState:
    return experiment.replicate(announce("initializing", start.load, patience=SOON))

  def finish(step: int, metrics: dict[str, float], figures: dict[str, float]) -> None:
    # In float16 a gradient may overflow while the loss scale can still be lowered.
    checked = ("loss",) if metrics.get("loss_scale", 1) > 1 else ("loss", "gradient_norm")
    check_finite(step, {name: metrics[name] for name in checked}, last_good=run.last_good)
    recorder.count_step(step, metrics, figures)

  def is_end(step: int) -> bool:  # a lowered `stop_after` may end the run before `step`
    patience = experiment.settings.evaluation.stop_early
    return step >= total or recorder.record.is_over(patience)

  in_flight = InFlight(finish)
  if is_end(step) and start.is_evaluated:
    state = load_state()
  else:
    # The data are opened before compiling, so that an unreadable example is reported at once.
    with request.breakable(), experiment.listing():
      iterate, fill = resident.open_feed(experiment.batches(), experiment.settings.data.device)
      for role in ("validation", "test"):
        examples(role)
      program = compilation.compile_steps(experiment, constants, run.workdir)
      program = dataclasses.replace(program, fill=fill)
      state = load_state()
      measure = make_measure(experiment, entropy_program, constants, examples, state)
    recorder.progress.begin()
    stream = recorder.progress.timed(iterate(step, total))
    while True:
      is_new = step > start.step or not start.is_evaluated
      if is_new and (is_end(step) or experiment.is_due(step, "evaluation.every")):
        in_flight.wait()
        state = validate(run, evaluate, state, step)
      is_last = is_end(step)
      is_best = recorder.record.best_step == step
      is_due = experiment.is_due(step, "checkpoint.every")
      if is_new and (is_last or is_best or is_due or in_flight.stop):
        in_flight.wait()
        run.save(step, state)
      if is_last or in_flight.stop:
        break
      # The first dispatch is one step, so that a user soon sees that the run works.
      steps = range(step, experiment.next_event(step, program.steps if step > start.step else 1))
      batches = [next(stream) for _ in steps]
      in_flight.wait(LIMIT - 1)
      with jax.profiler.StepTraceAnnotation("train", step_num=step):
        state, metrics, measured, stop = program(state, constants, batches, request.is_received())
      step = steps.stop
      entropies = {}
      if is_measured(experiment, step):
        in_flight.wait()  # so that earlier rows do not include the entropy's time
        entropies = measure(state.params, state.model_state)
      in_flight.add(steps, metrics, measured, stop, entropies)
  if not is_end(step):
    return Result(run.workdir, step, False)
  if step < total:
    recorder.progress.message(
      f"step {step}: {recorder.record.waited} evaluations in a row brought no better"
      f" {experiment.task.figures[0].name}; the run ends early (evaluation.stop_early)"
    )
  return Result(run.workdir, step, True, test_best(run, evaluate, state, step))
