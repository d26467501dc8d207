"""Makes experiments and programs once for each config, so that JAX compiles them once."""

import pytest

from vitx.ops.implementation import current_rule
from vitx.training import compilation, experiment, loop, phases, validation

_made = {}


def _once(function, key):
  """Returns the function with a cache of its results, by a key of its arguments."""

  def call(*given, **options):
    found = (function.__qualname__, key(*given, **options))
    if found not in _made:
      _made[found] = function(*given, **options), given  # kept, so that their `id` stays unique
    return _made[found][0]

  return call


@pytest.fixture(scope="module", autouse=True)
def one_experiment_of_a_config():
  """Caches experiments by config, so that a resumed run takes the programs of the first run.

  This changes none of the run's bits.
  """
  config = lambda config, **options: repr((config.to_dict(), options, current_rule()))  # noqa: E731
  by_step = lambda experiment, *_: id(experiment.step)  # noqa: E731
  by_describer = lambda experiment, *given: (id(experiment.step), *given)  # noqa: E731
  with pytest.MonkeyPatch.context() as patch:
    for user in (loop, phases):
      patch.setattr(user, "make_experiment", _once(experiment.make_experiment, config))
    patch.setattr(loop, "compile_evaluation", _once(validation.compile_evaluation, by_step))
    patch.setattr(compilation, "forward_flops", _once(compilation.forward_flops, by_step))
    for name in ("init_state", "implementations", "tokens"):
      method = getattr(experiment.Experiment, name)
      key = by_describer if name == "implementations" else by_step
      patch.setattr(experiment.Experiment, name, _once(method, key))
    yield
