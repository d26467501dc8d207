"""Overrides in one string: fields keep their types, choices are replaced, mistakes are named."""

import pytest

from configs import digits
from vitx.config import default_config, fields, parse_arg, take_override, with_overrides
from vitx.config.describe import describe
from vitx.config.loader import load_config


def test_overrides_keep_types():
  config = digits.get_config(
    "softmax,seed=3,learning_rate=1,model.width=32,duration=20,augment.random_resized_crop=(0.5,1.0),"
    "optimizer.weight_decay=1"
  )
  assert config.seed == 3
  assert config.learning_rate == 1.0 and isinstance(config.learning_rate, float)
  assert config.model.width == 32 and isinstance(config.optimizer.weight_decay, float)
  assert config.duration == "20"
  assert config.augment.random_resized_crop == (0.5, 1.0)


def test_a_short_name_replaces_a_named_choice():
  config = digits.get_config("dataset=cifar10,token_mixer=my.module:Mixer,stem=linear")
  assert config.data.source == "cifar10"
  assert config.model.token_mixer.to_dict() == {"name": "my.module:Mixer"}
  assert config.model.stem.to_dict() == {"name": "linear"}  # the old stem's fields are gone


def test_a_dict_replaces_and_deeper_fields_add():
  config = digits.get_config("optimizer={'name':'sgd','momentum':0.9},stem.patch=4")
  assert config.optimizer.to_dict() == {"name": "sgd", "momentum": 0.9}
  assert config.model.stem.patch == 4 and config.model.stem.name == "conv"


def test_a_field_of_an_unnamed_part_belongs_to_the_default_part():
  config = with_overrides(load_config("digits"), "model.norm.epsilon=1e-3")
  assert config.model.norm.to_dict() == {"name": "layer", "epsilon": 1e-3}
  config = with_overrides(load_config("density_digits"), "model.norm.use_bias=False")
  assert config.model.norm.to_dict() == {"name": "layer", "epsilon": 1e-5, "use_bias": False}
  with pytest.raises(ValueError, match=r"no field 'model\.nomr'"):
    with_overrides(load_config("digits"), "model.nomr.epsilon=1e-3")


@pytest.mark.parametrize("row", ["digits", "density_digits", "cifar10:swin", "cifar10:convmixer"])
def test_every_explained_field_can_be_set(row):
  config = load_config(row)
  for path, described in describe(config).items():
    if not path.endswith(".name"):
      with_overrides(config, f"{path}={described.value!r}")


@pytest.mark.parametrize("text", ["(sex,age)", "'sex,age'", "('sex','age')"])
def test_texts_need_no_quotes(text):
  for field in ("data", "phases.one.data"):
    config = with_overrides(default_config(), f"{field}.label_columns={text}")
    assert fields.find(config, field).label_columns == ("sex", "age")


def test_an_argument_splits_into_row_and_overrides():
  assert parse_arg(None, ("a", "b"), "b") == ("b", "")
  assert parse_arg("a,x=(1,2),y=3", ("a", "b"), "b") == ("a", "x=(1,2),y=3")
  assert parse_arg("x=1", ("a",), "a") == ("a", "x=1")


def test_an_empty_override_changes_nothing():
  assert with_overrides(default_config(), "").to_dict() == default_config().to_dict()


def test_a_bare_name_may_replace_a_default_and_then_take_fields():
  config = with_overrides(default_config(), "token_mixer=bigbird,token_mixer.block=4")
  assert config.model.token_mixer.to_dict() == {"name": "bigbird", "block": 4}
  config = load_config("simplified_cifar10:model.block.mlp_gain=0.5,posemb=sincos,posemb.base=10")
  assert config.model.block.to_dict() == {"name": "simplified", "mlp_gain": 0.5}
  assert config.model.posemb.to_dict() == {"name": "sincos", "base": 10}


@pytest.mark.parametrize(
  ("text", "value"),
  [
    ("init_from=2024_11_25", "2024_11_25"),
    ("init_from=1e3", "1e3"),
    ("init_from='1e3'", "1e3"),
    ("data.data_dir=None", None),
    ("duration=1_000", "1000"),
    ("duration=1e3", "1e3"),
    ("tracking=wandb,tracking.project=3.10", "3.10"),
    ("task=distillation,task.teacher=2024_11_25", "2024_11_25"),
    ("optimizer.b1=0.5", 0.5),
    ("model.width=32", 32),
    ("phases.a.init_from=1e3", "1e3"),
  ],
)
def test_a_text_field_keeps_the_text(text, value):
  config = with_overrides(default_config(), text)
  read = fields.find(config, text.split(",")[-1].partition("=")[0])
  assert read == value and type(read) is type(value)


def test_overrides_leave_their_config_unchanged():
  config = default_config()
  changed = with_overrides(config, "seed=3,token_mixer=fnet,data.splits.train=x,init_seed=4")
  assert config.to_dict() == default_config().to_dict() and config.get_type("init_seed") is int
  assert (changed.seed, changed.init_seed, changed.is_locked) == (3, 4, True)


def test_one_override_is_taken_out():
  assert take_override("a=1,b=2", "b", ("1", "2")) == ("2", "a=1")
  assert take_override("a=1", "b", ("1", "2")) == ("1", "a=1")
  assert take_override("a=1", "b") == ("", "a=1")
  assert take_override("b=x y,a=1", "b") == ("x y", "a=1")
  assert take_override("b='x,y',a=1", "b") == ("x,y", "a=1")  # quotes, as of any other field
