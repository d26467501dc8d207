"""Every field at the top of a config is held to its type and range before anything is opened."""

import jax
import numpy as np
import pytest

from configs.common import default_config
from vitx.config.checks import check_value
from vitx.config.errors import ConfigError
from vitx.config.registry import options
from vitx.training.fields import FIELDS, check_config
from vitx.training.optim.optimizers import OPTIMIZERS, make_optimizer
from vitx.training.optim.plateau import Plateau
from vitx.training.optim.schedules import SCHEDULES, make_schedule

NAN = float("nan")


def config(path, value):
  """The default config with a value that ml_collections itself would not let in."""
  nested = default_config().to_dict()
  *parents, last = path.split(".")
  node = nested
  for parent in parents:
    node = node[parent]
  assert last in node
  node[last] = value
  return nested


def test_the_defaults_pass():
  check_config(default_config())


@pytest.mark.parametrize(
  ("path", "value"),
  [
    ("seed", -1),
    ("seed", 12345678901234567890),
    ("seed", True),
    ("init_seed", 1.5),
    ("batch_size", 0),
    ("batch_size", 1e9),
    ("grad_accum_steps", -1),
    ("learning_rate", True),
    ("learning_rate", -0.1),
    ("learning_rate", NAN),
    ("learning_rate", "fast"),
    ("learning_rate", None),
    ("ema_decay", 1.0),
    ("grad_clip_norm", 0.0),
    ("layer_decay", 1.1),
    ("layer_decay", 0.0),
    ("weight_decay_mask", "matrix"),
    ("freeze", "stem/.*"),
    ("evaluation.batch_size", 0),
    ("evaluation.crop_ratio", 0.0),
    ("checkpoint.keep", "two"),
    ("data.validation", 1.0),
    ("data.fraction", 0.0),
    ("data.threads", 0),
    ("data.memory", "some"),
    ("data.device", "some"),
    ("data.channels", 0),
    ("data.image_size", -1),
    ("augment.hflip", 1.5),
    ("augment.mixup", NAN),
    ("task.label_smoothing", 2),
    ("evaluation.attention_entropy", -1),
    ("tracking", None),
    ("optimizer", None),
    ("schedule", None),
    ("model", None),
    ("task", 3),
  ],
)
def test_what_is_out_of_range_is_named_in_one_line(path, value):
  with pytest.raises(ConfigError) as error:
    check_config(config(path, value))
  assert f"{path}={value!r}" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("path", FIELDS)
def test_a_check_says_yes_or_names_the_field(path):
  for value in (-1, 0, 1e9, NAN, "text", True, None):
    try:
      check_value(value, path, FIELDS[path])
    except ConfigError as error:
      assert str(error).startswith(path) and "\n" not in str(error), value


BAD = (-1, 0, 10**9, 1e9, NAN, "x", True, None, (0,), ())
PARAMS = {"kernel": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)}


def fields_of(table, hidden):
  return [(name, f) for name, made in table.items() for f in options(made) if f not in hidden]


def check_each(field, run):
  """Runs what each value of `BAD` may break; it works, or the field is named."""
  for value in BAD:
    try:
      run(value)
    except ConfigError as error:
      assert field in str(error) and "\n" not in str(error), (value, str(error))
    except Exception as error:
      error.add_note(f"{field}={value!r}")
      raise


@pytest.mark.parametrize(("name", "field"), fields_of(OPTIMIZERS, ("decay_mask",)))
def test_fields_of_optimizers(name, field):
  def run(value):
    config = {**default_config().to_dict(), "optimizer": {"name": name, field: value}}
    optimizer = make_optimizer(config, PARAMS)
    updates, _ = optimizer.update(PARAMS, optimizer.init(PARAMS), PARAMS)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(updates))

  check_each(f"optimizer.{field}", run)


@pytest.mark.parametrize(("name", "field"), fields_of(SCHEDULES, ("run",)))
def test_fields_of_schedules(name, field):
  def run(value):
    spec = {"name": name, **({"boundaries": (4, 8)} if name == "step" else {}), field: value}
    rates = jax.vmap(make_schedule(spec, 0.1, 12, 2.5))(np.arange(12, dtype=np.int32))
    assert np.isfinite(rates).all() and (np.asarray(rates) >= 0).all()
    if name == "plateau":
      Plateau.from_config(spec).update(1.0)

  check_each(f"schedule.{field}", run)
