"""Begins a run from a new state, or continues it from the state that its workdir holds."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from vitx.analysis import cost
from vitx.checkpoints import tree
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.store import CheckpointStore
from vitx.interop.init_from import check_run, initial_variables
from vitx.interop.init_from import check_source as check_weights
from vitx.runtime.environment import describe_data, describe_environment
from vitx.runtime.weights import make_fit
from vitx.training.distributed import is_writer
from vitx.training.experiment import Experiment
from vitx.training.parameters import map_named
from vitx.training.record import provenance
from vitx.training.record.recorder import Record


@dataclasses.dataclass(frozen=True)
class Beginning:
  """The state from which a run begins or continues.

  Attributes:
    load: A function that returns the training state, on the host; it may wait for a compilation.
    step: The number of updates that made the state.
    record: The record of the run so far.
    is_evaluated: False if a signal broke off the evaluation of this state.
  """

  load: Callable[[], Any]
  step: int
  record: Record
  is_evaluated: bool


def check_beginning(experiment: Experiment, workdir: str, *, writes: bool) -> None:
  """Checks that a run can begin or continue in a workdir, and changes no file there.

  With `writes=False`, as for a dry run, the workdir is not read.
  """
  settings = experiment.settings
  check_source(experiment, workdir, writes=writes)
  if writes:
    provenance.check_same_run(workdir, settings, experiment.source.info.fingerprint)
    if wd.list_steps(workdir):
      provenance.check_same_data(workdir, describe_data(experiment.source, settings.data))
    wd.check_place(workdir, cost.tree_bytes(experiment.shapes), settings.checkpoint.keep)


def check_source(experiment: Experiment, workdir: str, *, writes: bool) -> None:
  """Checks that the weights of `init_from` fit the run, unless the run has checkpoints already.

  With `writes=False`, as for a dry run, checkpoints in the workdir do not count.
  """
  if experiment.settings.init_from and not (writes and wd.list_steps(workdir)):
    # This check comes before any write; the weights are read later, when there is a state to fill.
    _use_weights(check_weights, experiment, experiment.named_shapes())


def check_phase(experiment: Experiment, before: Experiment) -> None:
  """Checks that a phase can begin with the weights of another phase, which is not trained yet."""
  variables = tree.zeros(before.variables(before.named_shapes()))
  data = describe_data(before.source, before.settings.data)
  loaded = Loaded(before.settings, before.task, variables, data, step=0, workdir="")
  _use_weights(functools.partial(check_run, loaded), experiment, experiment.named_shapes())


def begin(
  experiment: Experiment,
  workdir: str,
  store: CheckpointStore,
  initialize: Callable[[], Callable[[], Any]],
) -> Beginning:
  """Restores the newest undamaged state in the workdir, or makes a new one.

  The function also writes `config.json` and `environment.json`. A new state has the weights of
  `init_from`, if that field is set.

  Args:
    experiment: The experiment that the run trains.
    workdir: The directory that the run writes to.
    store: The run's checkpoints.
    initialize: A function that starts a compilation, and returns `load` for a new run.
  """
  settings, record, start = experiment.settings, Record(), 0
  target = experiment.named_shapes()
  restored = store.restore_latest(target)
  if restored is not None:
    state, start = restored.state, restored.step
    load = lambda: state  # noqa: E731
    record = Record(**restored.record)
    if start < experiment.total_steps:
      record = record.go_on()
    print(f"resuming {workdir} at step {start}", flush=True)
  else:
    start_state = initialize()
    load = lambda: _with_examples(experiment, start_state())  # noqa: E731
  if restored is None and settings.init_from:
    state = load()
    variables = _use_weights(initial_variables, experiment, state)
    filled = tree.name_leaves(variables.pop("params"))
    params = map_named(lambda name, x: filled.get(name, x), state.params)  # adapters are new
    state = _with_params(experiment, state.replace(model_state=variables), params)
    load = lambda: state  # noqa: E731
  if is_writer():
    wd.write_json(workdir, "config.json", wd.to_plain(settings))
    data = describe_data(experiment.source, settings.data)
    environment = describe_environment(data, experiment.implementations())
    wd.write_json(workdir, wd.ENVIRONMENT, environment)
  is_evaluated, record.is_evaluated = record.is_evaluated, True
  return Beginning(load, start, record, is_evaluated)


def _with_examples(experiment: Experiment, state: Any) -> Any:
  """Returns a new state whose parameters follow from the training examples by `Task.begin`."""
  params = experiment.task.begin(state.params, experiment.examples.train)
  return state if params is state.params else _with_params(experiment, state, params)


def _with_params(experiment: Experiment, state: Any, params: Any) -> Any:
  """Returns a new state that has the given parameters, and their copy as moving average."""
  ema = None if state.ema is None else jax.tree.map(np.copy, params)
  state = state.replace(params=params, ema=ema)
  if experiment.step.cycle:  # an elementwise optimizer of vitx, whose state has no parameters
    return state
  # The state of others, such as `optax:contrib.dog`, may have the parameters of the start.
  return state.replace(opt_state=experiment.step.optimizer.init(params))


def _use_weights(function: Callable, experiment: Experiment, state: Any) -> Any:
  """Calls a function that fits the weights of `init_from` to a run's state, or checks the fit."""
  settings = experiment.settings
  fit = make_fit(experiment.task, settings, experiment.source.info)
  return function(settings.init_from, experiment.variables(state), fit)
