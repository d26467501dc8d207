"""Overrides in one string, and the shipped configs."""

import importlib
from pathlib import Path

import jax
import pytest

from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.config import default_config, parse_arg, with_overrides
from vitx.models import model_from_config
from vitx.ops.patterns import PATTERNS

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(p.stem for p in (ROOT / "configs").glob("*.py") if p.stem != "__init__")


def module(name):
  return importlib.import_module(f"configs.{name}")


@pytest.mark.parametrize("name", FILES)
def test_every_row_builds_and_its_docstring_has_the_command(name):
  config_file = module(name)
  for row in config_file.ROWS:
    config = config_file.get_config(row)
    assert config.is_locked
    assert set(config) == set(default_config())
  assert f"python train.py --config configs/{name}.py" in config_file.__doc__


def test_overrides_keep_types():
  config = module("digits").get_config(
    "softmax,seed=3,learning_rate=1,model.width=32,duration=20,augment.random_resized_crop=(0.5,1.0)"
  )
  assert config.seed == 3
  assert config.learning_rate == 1.0 and isinstance(config.learning_rate, float)
  assert config.model.width == 32
  assert config.duration == "20"
  assert config.augment.random_resized_crop == (0.5, 1.0)


def test_short_names_and_replacing_a_named_choice():
  config = module("digits").get_config("dataset=cifar10,token_mixer=my.module:Mixer,stem=linear")
  assert config.data.source == "cifar10"
  assert config.model.token_mixer.to_dict() == {"name": "my.module:Mixer"}
  assert config.model.stem.to_dict() == {"name": "linear"}  # the old stem's fields are gone


def test_a_dict_replaces_and_deeper_fields_add():
  config = module("digits").get_config("optimizer={'name':'sgd','momentum':0.9},stem.patch=4")
  assert config.optimizer.to_dict() == {"name": "sgd", "momentum": 0.9}
  assert config.model.stem.patch == 4 and config.model.stem.name == "conv"


@pytest.mark.parametrize(
  ("override", "parts"),
  [
    ("learning_rat=1", ["learning_rat", "Did you mean 'learning_rate'?"]),
    ("data.sorce=x", ["data.sorce", "Did you mean 'source'?"]),
    ("modle.width=3", ["modle", "Did you mean 'model'?"]),
    ("seed=three", ["seed='three'"]),
    ("seed", ["unknown row 'seed'"]),
    ("softmax,seed", ["'seed'", "field=value"]),
    ("sofmax", ["unknown row 'sofmax'", "Did you mean 'softmax'?", "Rows: axial, bigbird"]),
    ("learning_rate=fast", ["learning_rate='fast'"]),
  ],
)
def test_bad_overrides(override, parts):
  with pytest.raises(ValueError) as error:
    module("digits").get_config(override)
  for part in parts:
    assert part in str(error.value)


def test_parse_arg():
  assert parse_arg(None, ("a", "b"), "b") == ("b", "")
  assert parse_arg("a,x=(1,2),y=3", ("a", "b"), "b") == ("a", "x=(1,2),y=3")
  assert parse_arg("x=1", ("a",), "a") == ("a", "x=1")


def test_an_empty_override_changes_nothing():
  assert with_overrides(default_config(), "").to_dict() == default_config().to_dict()


def test_digits_has_a_row_for_every_mixer_and_pattern():
  without = {"pattern"}
  assert set(module("digits").ROWS) == (set(MIXERS) | set(PATTERNS)) - without


QUICK = ("softmax", "bigbird", "performer", "linformer", "shaped", "fnet", "axial", "levit")


@pytest.mark.parametrize("row", all_but(*QUICK, of=module("digits").ROWS))
def test_every_row_of_digits_makes_a_network(row):
  config = module("digits").get_config(f"{row},model.depth=1")
  model = model_from_config({**config.model, "num_classes": 10})
  images = jax.ShapeDtypeStruct((2, 8, 8, 1), "float32")
  logits, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), images)
  assert logits.shape == (2, 10)
