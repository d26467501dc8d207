"""Makes experiments and programs once for each config, so that JAX compiles them once."""

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from vitx.checkpoints.workdir import to_plain
from vitx.ops.implementation import current_rule
from vitx.training import compilation, experiment, loop, phases, validation

# Fields that say how long a run goes, and when it evaluates, saves and logs. No step depends on
# them: `test_a_stopped_run_has_the_learning_rates_of_the_whole_run` checks the only way.
FREE = {
  "": ("log_every", "stop_after", "checkpoint", "tracking"),
  "evaluation": ("every", "limit", "on_test", "stop_early", "attention_entropy", "weights"),
}
_made = {}


def _once(function, key):
  """Returns the function with a cache of its results, by a key of its arguments."""

  def call(*args, **options):
    entry = (function.__qualname__, key(*args, **options))
    if entry not in _made:
      _made[entry] = function(*args, **options), args  # kept, so that their `id` stays unique
    return _made[entry][0]

  return call


def _make_experiment(config, **options):
  """Makes an experiment with the step of an earlier one, if they differ in `FREE` fields alone."""
  result = experiment.make_experiment(config, **options)
  same = to_plain(config)
  for group, names in FREE.items():
    fields = same[group] if group else same
    for name in names:
      fields.pop(name, None)
  step = _made.setdefault(repr((same, options, current_rule())), result.step)
  return dataclasses.replace(result, step=step)


@contextlib.contextmanager
def shared() -> Iterator[None]:
  """Caches experiments by config, so that a resumed run takes the programs of the first run.

  This changes none of the run's bits.
  """
  if loop.make_experiment is not experiment.make_experiment:  # within another `shared`
    yield
    return
  config = lambda config, **options: repr((to_plain(config), options, current_rule()))  # noqa: E731
  by_step = lambda experiment, *_: id(experiment.step)  # noqa: E731
  by_describer = lambda experiment, *args: (id(experiment.step), *args)  # noqa: E731
  by_entropy = lambda one: (id(one.step), one.settings.evaluation.attention_entropy)  # noqa: E731
  with pytest.MonkeyPatch.context() as patch:
    for user in (loop, phases):
      patch.setattr(user, "make_experiment", _once(_make_experiment, config))
    patch.setattr(loop, "compile_evaluation", _once(validation.compile_evaluation, by_entropy))
    patch.setattr(compilation, "forward_flops", _once(compilation.forward_flops, by_step))
    for name in ("init_state", "implementations", "tokens"):
      method = getattr(experiment.Experiment, name)
      key = by_describer if name == "implementations" else by_step
      patch.setattr(experiment.Experiment, name, _once(method, key))
    yield
