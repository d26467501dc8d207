"""Each value of a field of an optimizer or schedule works, or the error names the field."""

import jax
import numpy as np
import pytest

from vitx.config import default_config
from vitx.config.describe import read_meanings
from vitx.config.errors import ConfigError
from vitx.config.registry import build, function_of, options
from vitx.tasks import TASKS
from vitx.training.optim.optimizers import OPTIMIZERS, make_optimizer
from vitx.training.optim.schedules import SCHEDULES, make_schedule
from vitx.training.record.trackers import TRACKERS

NAN = float("nan")
BAD = (-1, 0, 10**9, 1e9, NAN, "x", True, None, (0,), ())
PARAMS = {"kernel": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)}


def fields_of(table, hidden):
  return [(name, f) for name, choice in table.items() for f in options(choice) if f not in hidden]


@pytest.mark.parametrize("table", [OPTIMIZERS, SCHEDULES, TASKS, TRACKERS])
def test_every_field_is_described(table):
  for name, choice in table.items():
    function = function_of(choice)
    assert options(function).keys() - {"run"} <= read_meanings(function).keys(), name


def check_each(field, run):
  """Runs each value of `BAD`; it works, or an error names the field."""
  for value in BAD:
    try:
      run(value)
    except ConfigError as error:
      assert field in str(error), value


@pytest.mark.parametrize(("name", "field"), fields_of(OPTIMIZERS, ("decay_mask",)))
def test_any_value_of_an_optimizers_field_works_or_is_named(name, field):
  def run(value):
    config = {**default_config().to_dict(), "optimizer": {"name": name, field: value}}
    optimizer = make_optimizer(config, PARAMS)
    updates, _ = optimizer.update(PARAMS, optimizer.init(PARAMS), PARAMS)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(updates))

  check_each(f"optimizer.{field}", run)


@pytest.mark.parametrize(("name", "field"), fields_of(SCHEDULES, ("run",)))
def test_any_value_of_a_schedules_field_works_or_is_named(name, field):
  def run(value):
    spec = {"name": name, **({"boundaries": (4, 8)} if name == "step" else {}), field: value}
    rates = jax.vmap(make_schedule(spec, 12, 2.5))(np.arange(12, dtype=np.int32))
    assert np.isfinite(rates).all() and (np.asarray(rates) >= 0).all()
    if name == "plateau":
      build(SCHEDULES, spec, "schedule", hidden=("run",))(None).update(None, 1.0)

  check_each(f"schedule.{field}", run)
