"""Trains several runs as one program, each in an ordinary workdir of its own.

Of a run's own the data order, the augmentation and the initialization are the same bits as when it
is trained alone; its figures are the same up to rounding. See `vitx.training.members` for the
program, and `vitx.training.loop` for what one run does: the order is the same.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.data.batches import TrainBatches
from vitx.models import stacked
from vitx.ops.implementation import choosing_by
from vitx.training import cache, compilation, parallel, unevaluated
from vitx.training.alike import check_states, read_scalars
from vitx.training.attention_entropy import Measure, make_measure
from vitx.training.beginning import Beginning, check_beginning
from vitx.training.failures import (
  Interrupted,
  NonFiniteError,
  StopRequest,
  check_finite,
  explain_out_of_memory,
)
from vitx.training.in_flight import InFlight
from vitx.training.loop import Result
from vitx.training.members import Member, Program, compile_members
from vitx.training.record import provenance
from vitx.training.record.console import RunLog
from vitx.training.record.progress import announce
from vitx.training.running import (
  Evaluate,
  Programs,
  Run,
  compile_evaluation,
  is_measured,
  last_good,
  make_evaluate,
  open_run,
  test_best,
  validate,
)
from vitx.training.setup import Experiment, make_experiment

# How a run ended: without a result if its loss is not finite, and not even begun if another
# training holds its workdir, or (None) if it stands at another step than the first of them.
Ended = Result | NonFiniteError | lock.WorkdirInUseError | None


@dataclasses.dataclass
class _Trained:
  """A run of the program.

  Attributes:
    member: of the program.
    run: in its workdir.
    begun: where it began.
    log: of what is said of it.
    state: on the host, as the step takes it, where something is to be done with it.
    problem: what ended it.
  """

  member: Member
  run: Run
  begun: Beginning
  log: RunLog
  state: Any
  problem: NonFiniteError | lock.WorkdirInUseError | None = None

  @contextlib.contextmanager
  def told(self) -> Iterator[None]:
    """Keeps what is said in a `with` block; what is not finite ends this run alone."""
    try:
      with self.log.told():
        yield
    except (NonFiniteError, lock.WorkdirInUseError) as error:  # or it was taken over
      self.problem = error

  def is_new(self, step: int) -> bool:
    """Returns whether the state at a step was not evaluated by an earlier session."""
    return step > self.begun.step or not self.begun.is_evaluated


def train(
  configs: Sequence[ConfigDict], workdirs: Sequence[str | None], *, trust_code: bool = False
) -> list[Ended]:
  """Trains runs as one program, or goes on where they stand.

  The program is that of all the configs, whichever are trained: a run that was stopped, or one
  whose fellows have ended, goes on to the same bits.

  Args:
    configs: alike, see `vitx.training.alike`.
    workdirs: of each; None for a run that is not to be trained now.
    trust_code: as of `vitx.training.loop.train`.

  Returns:
    How each ended; None for those without a workdir.

  Raises:
    ConfigError, OutOfMemoryError, CheckpointError: as of one run.
  """
  cache.enable()
  rules = [None if each is None else provenance.keep_rule(each) for each in workdirs]
  rule = next(each for each in rules if each is not None)
  # A run that began by another rule of "auto" is another program.
  now = [each if own == rule else None for each, own in zip(workdirs, rules, strict=True)]
  with choosing_by(rule), StopRequest() as request:
    try:
      with request.breakable():
        made = _Together(configs, now, trust_code)
    except Interrupted:
      return [
        None if each is None else Result(each, unevaluated.find_step(each), False) for each in now
      ]
    return made.train(request)


class _Together:
  """The runs of one program, those of them that are trained now, and how they end."""

  def __init__(
    self, configs: Sequence[ConfigDict], workdirs: Sequence[str | None], trust_code: bool
  ):
    self._trust_code = trust_code
    self._count = len(configs)
    self._ended: list[Ended] = [None] * len(configs)
    scalars = [read_scalars(config) for config in configs]
    variants = list(dict.fromkeys(scalars))
    needed = {scalars.index(each) for each in variants}
    names = [None if each is None else wd.find_class_names(each) for each in workdirs]
    experiments = {
      i: dataclasses.replace(
        make_experiment(config, trust_code=trust_code, class_names=names[i]), devices=1
      )
      for i, config in enumerate(configs)
      if i in needed or workdirs[i] is not None
    }
    self._variants = [experiments[scalars.index(each)].step for each in variants]
    self._numbers = [variants.index(each) for each in scalars]
    self._places = {i: each for i, each in enumerate(workdirs) if each is not None}
    self._experiments = experiments
    self._first = experiments[min(self._places)]
    check_states(list(experiments.values()))
    for i, workdir in self._places.items():
      check_beginning(experiments[i], workdir, writes=True, trust_code=self._trust_code)

  def train(self, request: StopRequest) -> list[Ended]:
    config, workdir = self._first.config, self._places[min(self._places)]
    out_of_memory = explain_out_of_memory(config, self._first.tokens(), workdir)
    with contextlib.ExitStack() as stack, out_of_memory:
      try:
        trained = self._open(stack, request)
        if trained:
          self._run(trained, request)
      except Interrupted:
        pass
    return self._ended

  def _open(self, stack: contextlib.ExitStack, request: StopRequest) -> dict[int, _Trained]:
    """Returns the runs that stand at one step, opened; those of other steps are let go."""
    opened: dict[int, _Trained] = {}
    for i, workdir in self._places.items():
      with contextlib.ExitStack() as own:
        try:
          held = own.enter_context(lock.hold(workdir))
        except lock.WorkdirInUseError as error:
          self._ended[i] = error
          continue
        self._ended[i] = Result(workdir, unevaluated.find_step(workdir), False)
        log = own.enter_context(contextlib.closing(RunLog(workdir, write=True)))
        experiment = self._experiments[i]
        with log.told():
          run, begun = own.enter_context(
            open_run(experiment, workdir, held, request, self._trust_code)
          )
        if opened and begun.step != next(iter(opened.values())).begun.step:
          self._ended[i] = None
          continue
        found = experiment.task.found_in_data()
        member = Member(experiment.config.data_seed, self._numbers[i], found)
        state = stacked.stack(begun.state, experiment.step.cycle)
        opened[i] = _Trained(member, run, begun, log, state)
        stack.enter_context(own.pop_all())
    for each in opened.values():
      each.run.recorder.progress.share(len(opened))
    return opened

  def _run(self, trained: dict[int, _Trained], request: StopRequest) -> None:
    """Runs evaluation, saving and step, in this order, to the end or a signal."""
    runs, experiment = list(trained.values()), self._first
    step, total = runs[0].begun.step, experiment.total_steps
    constants = parallel.replicate(experiment.constants)
    programs = _compile_evaluations(runs, request)
    examples = [functools.cache(each.run.experiment.keep) for each in runs]
    evaluates = [
      make_evaluate(each.run, program, constants, own)
      for each, program, own in zip(runs, programs, examples, strict=True)
    ]
    in_flight = InFlight(
      functools.partial(_count_steps, runs),
      lambda x: np.stack(parallel.collect(x, len(runs)), axis=-1),
    )
    states = self._deal(runs)
    if step < total:
      with request.breakable():
        batches = [each.run.experiment.batches() for each in runs]
        program = self._compile(runs, states, constants, request)
        measures = [
          make_measure(
            each.run.experiment.config, own.entropy, kept, parallel.replicate(each.state)
          )
          for each, own, kept in zip(runs, programs, examples, strict=True)
        ]
      streams = [_begin(each, own, total) for each, own in zip(runs, batches, strict=True)]
    while True:
      is_last = step >= total  # later, where `stop_after` was lowered
      if is_last or in_flight.stop or _is_event(experiment, step):
        in_flight.wait()
        for each, state in zip(runs, parallel.collect(states, len(runs)), strict=True):
          each.state = state
        _visit(runs, evaluates, step, stop=in_flight.stop)
        states = self._deal(runs)
      if is_last or in_flight.stop or all(each.problem for each in runs):
        break
      steps = range(step, experiment.next_event(step, program.steps))
      fed = [[next(stream) for _ in steps] for stream in streams]
      in_flight.make_room()
      members = [each.member for each in runs]
      states, metrics, measured, stop = program(states, constants, members, fed, request.asked())
      step = steps.stop
      told = {}
      if is_measured(experiment, step):
        in_flight.wait()  # so that the rows before have their own times
        told = _measure(measures, states)
      in_flight.add(steps, metrics, measured, stop, told)
    for i, each, evaluate in zip(trained, runs, evaluates, strict=True):
      self._ended[i] = each.problem or _end(each, evaluate, step, total)

  def _deal(self, runs: Sequence[_Trained]) -> Any:
    return parallel.deal([each.state for each in runs], parallel.count_places(self._count))

  def _compile(
    self, runs: Sequence[_Trained], states: Any, constants: Any, request: StopRequest
  ) -> Program:
    """Compiles the program of all runs, and tells each that is trained now."""
    experiment = self._first
    config, places = experiment.config, parallel.count_places(self._count)
    flops = compilation.forward_flops(experiment)
    steps = config.steps_per_dispatch or compilation.count_steps(
      3 * flops * config.batch_size * places
    )
    for each in runs:
      with each.told():
        own = each.run.experiment
        header = compilation.make_header(own, flops, steps, each.run.workdir)
        print(f"{header}\none of {self._count} runs of a program", flush=True)
    blank, options = compilation.blank_batch(experiment), compilation.choose_options(config)
    program = announce(
      "compiling",
      lambda: compile_members(
        self._variants, states, constants, blank, steps, options=options, run=request.run
      ),
    )
    compilation.print_memory(program.compiled)
    return program


def _compile_evaluations(runs: Sequence[_Trained], request: StopRequest) -> list[Programs]:
  """Returns what evaluates each run; those whose tasks found the same in their data share it."""
  found = [str(jax.tree.map(np.ndarray.tolist, each.member.found)) for each in runs]
  firsts = {text: runs[found.index(text)].run.experiment for text in found}
  programs = {text: compile_evaluation(first, request) for text, first in firsts.items()}
  return [programs[text] for text in found]


def _begin(each: _Trained, batches: TrainBatches, total: int) -> Iterator[Any]:
  """Starts a run's clock; returns its batches, from where it stands."""
  progress = each.run.recorder.progress
  progress.begin()
  return progress.timed(batches.iterate(each.begun.step, total))


def _measure(measures: Sequence[Measure], states: Any) -> dict[str, list[float]]:
  """Returns what is told of the state of each run."""
  members = parallel.collect((states.params, states.model_state), len(measures))
  each = [
    measure(*parallel.replicate(member)) for measure, member in zip(measures, members, strict=True)
  ]
  return {name: [figures[name] for figures in each] for name in each[0]}


def _count_steps(
  runs: Sequence[_Trained],
  step: int,
  metrics: dict[str, list[float]],
  measured: dict[str, list[float]],
) -> None:
  """Records a step of each run, or that its loss is not finite."""
  for i, each in enumerate(runs):
    if each.problem is None:
      run, own = each.run, {name: values[i] for name, values in metrics.items()}
      with each.told():
        half = run.experiment.step.half
        check_finite(step, own, half=half, kept=functools.partial(last_good, run.store))
        told = {name: values[i] for name, values in measured.items()}
        run.recorder.count_step(step, own, told)


def _is_event(experiment: Experiment, step: int) -> bool:
  """Returns whether runs may have to be evaluated or saved at a step."""
  config = experiment.config
  cadences = (config.evaluation.every, config.checkpoint.every)
  return any(experiment.is_due(step, every) for every in cadences)


def _visit(
  runs: Sequence[_Trained], evaluates: Sequence[Evaluate], step: int, *, stop: bool
) -> None:
  """Evaluates and saves the runs, where it is due.

  Raises:
    Interrupted: a signal broke an evaluation off; the states of all runs are saved.
  """
  alive = [i for i, each in enumerate(runs) if not each.problem and each.is_new(step)]
  for place, i in enumerate(alive):
    try:
      with runs[i].told():
        _evaluate_and_save(runs[i], evaluates[i], step, stop=stop)
    except Interrupted:
      for j in alive[:place]:
        _save(runs[j], step)
      for j in alive[place + 1 :]:
        run = runs[j].run
        state = stacked.unstack(runs[j].state)
        unevaluated.save(run.workdir, step, state, run.recorder.snapshot())
      raise


def _evaluate_and_save(each: _Trained, evaluate: Evaluate, step: int, *, stop: bool) -> None:
  run = each.run
  experiment, config = run.experiment, run.experiment.config
  is_last = step == experiment.total_steps
  if is_last or experiment.is_due(step, config.evaluation.every):
    state = validate(run, evaluate, parallel.replicate(each.state), step)
    each.state = parallel.unreplicate(state)
  is_best = run.recorder.record.best_step == step
  if is_last or is_best or stop or experiment.is_due(step, config.checkpoint.every):
    _save(each, step)


def _save(each: _Trained, step: int) -> None:
  each.run.store.wait()  # a save under way is not among the steps yet
  if step not in each.run.store.steps():
    each.run.save(step, parallel.replicate(each.state))


def _end(each: _Trained, evaluate: Evaluate, step: int, total: int) -> Ended:
  """Returns how a run ended that had no problem before; tests it if it is finished."""
  run = each.run
  if step < total:
    return Result(run.workdir, step, False)
  result: Result | None = None
  with each.told():
    test = test_best(run, evaluate, parallel.replicate(each.state), step)
    result = Result(run.workdir, step, True, test)
  return result or each.problem
