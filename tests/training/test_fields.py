"""Every field at the top of a config is held to its type and range before anything is opened."""

import pytest

from configs.common import default_config
from vitx.checks import check_value
from vitx.errors import ConfigError
from vitx.training.fields import FIELDS, check_config

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
    ("data.channels", 2),
    ("data.image_size", -1),
    ("augment.hflip", 1.5),
    ("augment.mixup", NAN),
    ("task.label_smoothing", 2),
    ("tensorboard", "yes"),
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


@pytest.mark.parametrize("value", [-1, 0, 1e9, NAN, "text", True, None])
@pytest.mark.parametrize("path", FIELDS)
def test_a_check_says_yes_or_names_the_field(path, value):
  try:
    check_value(value, path, FIELDS[path])
  except ConfigError as error:
    assert str(error).startswith(path) and "\n" not in str(error)
