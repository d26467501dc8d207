"""The loader of configs: every form of a name, from any folder, overrides as text and as flags."""

import json

import pytest

from tests import runs
from vitx.checkpoints.workdir import flatten, to_plain
from vitx.cli.main import main
from vitx.config import loader as configs
from vitx.config.errors import ConfigError
from vitx.config.loader import join_text, load_config, split_flags

OWN = """
from ml_collections import ConfigDict
def get_config(arg=None):
  return ConfigDict({"arg": arg})
"""


@pytest.mark.parametrize("name", ["configs/digits.py", "digits.py", "digits"])
def test_shipped_configs_are_found_from_any_folder(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  config = load_config(f"{name}:performer,seed=3")
  assert config.model.token_mixer.name == "performer" and config.seed == 3


def test_a_file_of_ones_own_stands_before_the_shipped_one(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "configs").mkdir()
  for path in (tmp_path / "configs" / "digits.py", tmp_path / "mine.py"):
    path.write_text(OWN)
    assert load_config(str(path)).arg is None
  assert load_config("configs/digits.py:a,b=(1,2)").arg == "a,b=(1,2)"
  assert load_config("mine.py:x=gs://y").arg == "x=gs://y"


@pytest.mark.parametrize(
  ("text", "parts"),
  [
    (
      "configs/digit.py",
      ["'configs/digit.py' does not exist", "Did you mean 'digits'?", "cifar10"],
    ),
    ("elsewhere/digits.py", ["does not exist"]),
    ("vip.json", ["'vip.json' cannot be read as JSON", "No such file"]),
    ("digits:performr", ["unknown row 'performr'", "Did you mean 'performer'"]),
    ("digits:performer,sed=3", ["'sed'", "Did you mean 'seed'"]),
    ("digits:seed=1,seed=2", ["seed=1 is set already"]),
    ("digits:stem=conv,model.stem=linear", ["model.stem=conv is set already"]),
    ("vix_cifar10:vip,recipe=run,recipe=text", ["recipe=run is set already"]),
    ("digits:optimizer.b1=0.8,optimizer=sgd", ["drops optimizer.b1=0.8"]),
    ("digits:clip_norm=1", ["no field 'clip_norm'. Did you mean 'grad_clip_norm'?"]),
    ("digits:data.select=0.2", ["data.validation"]),
    ("digits:lr=1", ["no field 'lr'. Did you mean 'learning_rate'?"]),
    ("digits:wd=1", ["Did you mean 'optimizer.weight_decay'?"]),
    ("digits:drop_path=0.1", ["Did you mean 'model.stochastic_depth'?"]),
    ("digits:img_size=9", ["Did you mean 'data.image_size'?"]),
    ("digits:wandb=True", ["Did you mean 'tracking=wandb'?"]),
    ("digits:optimizer=None", ["optimizer=None must be a name"]),
    ("digits:data=digits", ["data='digits'", "must be a group with the fields channels"]),
    ("digits:seed=True", ["seed=True must be a number"]),
    ("digits:learning_rate=True", ["learning_rate=True must be a number"]),
    ("digits:seed=None", ["seed=None is not allowed"]),
    ("digits:data.sorce=x", ["data.sorce", "Did you mean 'source'?"]),
    ("digits:modle.width=3", ["modle", "Did you mean 'model'?"]),
    ("digits:seed", ["unknown row 'seed'", "Rows: axial, bigbird"]),
  ],
)
def test_what_cannot_be_is_one_line(text, parts):
  with pytest.raises(ConfigError) as error:
    load_config(text)
  assert all(part in str(error.value) for part in parts) and "\n" not in str(error.value)
  # The overrides as flags.
  name, _, arg = text.partition(":")
  items = arg.split(",")
  if "=" in items[-1] and "(" not in arg:
    row = items[0] if "=" not in items[0] else ""
    flags = [f"--config.{item}" for item in items if "=" in item]
    rest, overrides = split_flags([*flags, "--other"])
    assert rest == ["--other"]
    with pytest.raises(ConfigError) as again:
      load_config(join_text(f"{name}:{row}" if row else name, overrides))
    assert str(again.value) == str(error.value)


def test_flags_are_overrides():
  arguments = ["--config.dataset=mnist", "--config", "x", "--config.token_mixer", "fnet", "-y"]
  rest, overrides = split_flags(arguments)
  assert rest == ["--config", "x", "-y"]
  assert overrides == ["dataset=mnist", "token_mixer=fnet"]
  config = load_config(join_text("configs/cifar10.py:vit,seed=1", overrides))
  same = load_config("configs/cifar10.py:vit,seed=1,dataset=mnist,token_mixer=fnet")
  assert typed(config) == typed(same)
  # A named choice is replaced whole, and facts of the old data set are not kept.
  assert config.model.token_mixer.to_dict() == {"name": "fnet"}
  assert config.model.get("num_classes") is None and config.data.image_size is None
  for bad in (["--config.seed"], ["--config.seed", "--workdir"], ["--config.=3"]):
    with pytest.raises(ConfigError, match="needs a value"):
      split_flags(bad)


def test_quotes_hold_the_commas_of_a_value():
  for quote in "'\"":
    config = load_config(f"digits:data.source={quote}folder:/a,b{quote},seed=3")
    assert (config.data.source, config.seed) == ("folder:/a,b", 3)
  for plain in ("folder:/it's", "folder:/two'words,seed=0"):
    assert load_config(f"digits:data.source={plain}").data.source == plain.split(",")[0]
  _, overrides = split_flags(["--config.data.source=folder:/a,b", "--config.freeze", "('a','b')"])
  config = load_config(join_text("digits:seed=3", overrides))
  assert (config.data.source, config.freeze) == ("folder:/a,b", ("a", "b"))
  with pytest.raises(ConfigError, match=r"'b' must have the form .* field='a,b'"):
    load_config("digits:data.source=folder:/a,b")


@pytest.mark.parametrize("value", ["folder:/a(b", "folder:/a]b", "'folder:/a", "folder:/[a,b"])
def test_a_bracket_without_a_partner_takes_in_no_later_value(value):
  _, overrides = split_flags([f"--config.data.source={value}", "--config.seed=3"])
  config = load_config(join_text("digits", overrides))
  assert (config.data.source, config.seed) == (value, 3)
  if "," not in value:
    assert load_config(f"digits:data.source={value}").data.source == value
  for text in (f"data.source={value},seed=3", f"softmax,data.source={value},seed=3"):
    with pytest.raises(ConfigError, match=r"a bracket or quote without a partner.*in quotes"):
      load_config(f"digits:{text}")


def typed(config):
  """Returns the values of a config by path, each with its type."""
  return {path: (type(value), value) for path, value in flatten(config.to_dict()).items()}


@pytest.fixture
def written(tmp_path):
  """A function that writes a config as a run does, and returns the file's name."""

  def write(config, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_plain(config) | changes))
    return str(path)

  return write


@pytest.mark.parametrize(
  "text", ["digits", "imagenet:deit_s", "vix_cifar10:rope_vin", "cifar10:swin"]
)
def test_a_written_config_is_read_back_with_its_types(text, written):
  config = load_config(text)
  again = load_config(written(config))
  assert typed(again) == typed(config)
  assert again.data.splits.to_dict() == {"train": "", "validation": "", "test": ""}


def test_overrides_of_a_written_config(written):
  path = written(load_config("digits"))
  config = load_config(f"{path}:seed=3,optimizer=sgd,augment.random_resized_crop=(0.5,1)")
  assert (config.seed, config.optimizer.to_dict()) == (3, {"name": "sgd"})
  assert config.augment.random_resized_crop == (0.5, 1)
  with pytest.raises(ConfigError, match="has the classes, sizes and statistics of 'digits'"):
    load_config(f"{path}:dataset=mnist")


def test_seeds_of_a_run_follow_an_override(written):
  config = load_config("digits")
  with config.unlocked():
    config.init_seed = config.data_seed = config.graph_seed = 0
    config.model.token_mixer.seed = 0
  again = load_config(f"{written(config)}:seed=3")
  assert (again.seed, again.init_seed, again.data_seed, again.graph_seed) == (3, None, None, None)
  assert "seed" not in again.model.token_mixer
  config.init_seed = 5
  assert load_config(f"{written(config)}:seed=3").init_seed == 5


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"ema": 0.9}, "no field 'ema'. Did you mean 'ema_decay'"),
    ({"data": {"select": 0.1}}, "no field 'data.select'. Did you mean 'data.validation'"),
    ({"batch_sise": 3}, "no field 'batch_sise'. Did you mean 'batch_size'"),
    ({"batch_size": "many"}, "batch_size='many'"),
    ({"model": 3}, "must hold a JSON object, the fields of a config"),
  ],
)
def test_a_written_config_that_cannot_be(written, changes, message):
  with pytest.raises(ConfigError, match=message):
    load_config(written(load_config("digits"), **changes))


def test_train_refuses_before_heavy_imports(tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert main(["train", "--config", "digits", "--workdir", "x", "--config.sed=3"]) == 1
  assert "Did you mean 'seed'" in capsys.readouterr().err
  assert not (tmp_path / "x").exists()


def test_every_shipped_file_is_listed():
  names = sorted(path.stem for path in (runs.ROOT / "configs").glob("*.py"))
  with pytest.raises(ConfigError) as error:
    configs.find("nothing")
  for name in {name for name in names if name[0] != "_"}:
    assert name in str(error.value)
