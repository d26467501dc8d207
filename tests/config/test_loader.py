"""The loader of configs: every form of a name, from any folder, overrides as text and as flags."""

import json

import pytest

from tests import runs
from vitx.checkpoints.workdir import flatten, to_plain
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


def test_a_users_file_precedes_the_shipped_one(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "configs").mkdir()
  for path in (tmp_path / "configs" / "digits.py", tmp_path / "mine.py"):
    path.write_text(OWN)
    assert load_config(str(path)).arg is None
  assert load_config("configs/digits.py:a,b=(1,2)").arg == "a,b=(1,2)"
  assert load_config("mine.py:x=gs://y").arg == "x=gs://y"


@pytest.mark.parametrize(
  ("text", "part"),
  [
    ("configs/digit.py", "'configs/digit.py' does not exist. Did you mean 'digits'?"),
    ("README.md", "is neither a .py nor a .json file"),
    ("vip.json", "'vip.json' cannot be read as JSON: [Errno 2] No such file"),
    ("digits:performr", "unknown row 'performr'. Did you mean 'performer'?"),
    ("digits:seed=1,seed=2", "seed=1 is set already"),
    ("vix_cifar10:vip,recipe=run,recipe=text", "recipe=run is set already"),
    ("vix_cifar10:vip,recipe=txt", "recipe='txt' is unknown. Did you mean 'text'?"),
    ("digits:optimizer.b1=0.8,optimizer=sgd", "drops optimizer.b1=0.8"),
    ("digits:data.select=0.2", "Did you mean 'data.validation'?"),
    ("digits:wd=1", "Did you mean 'optimizer.weight_decay'?"),
    ("digits:wandb=True", "Did you mean 'tracking=wandb'?"),
    ("digits:data=digits", "data='digits' must be a group with the fields calibration"),
    ("digits:seed=True", "seed=True must be an integer"),
    ("digits:learning_rate=True", "learning_rate=True is not a number"),
    ("digits:modle.width=3", "Did you mean 'model'?"),
  ],
)
def test_an_impossible_config_is_refused_in_one_line(text, part):
  with pytest.raises(ConfigError) as error:
    load_config(text)
  assert part in str(error.value) and "\n" not in str(error.value)


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


def test_quotes_protect_the_commas_of_a_value():
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
def test_a_bracket_without_a_partner_swallows_no_later_value(value):
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


def test_overrides_change_a_written_config(written):
  path = written(load_config("digits"))
  config = load_config(f"{path}:seed=3,optimizer=sgd,augment.random_resized_crop=(0.5,1)")
  assert (config.seed, config.optimizer.to_dict()) == (3, {"name": "sgd"})
  assert config.augment.random_resized_crop == (0.5, 1)
  with pytest.raises(ConfigError, match="has the classes, sizes and statistics of 'digits'"):
    load_config(f"{path}:dataset=mnist")


def test_fields_that_a_run_computed_follow_an_override(written):
  computed = "data.image_size=8,data.decode_size=9,data.mean=(0.5,),data.std=(0.2,)"
  path = written(load_config(f"digits:{computed}"))

  def read(overrides):
    data = load_config(f"{path}:{overrides}").data
    return data.decode_size, data.mean, data.std

  assert read("seed=3") == (9, (0.5,), (0.2,))
  assert read("data.image_size=16") == read("evaluation.crop_ratio=0.5") == (None, (0.5,), (0.2,))
  assert read("data.image_size=16,data.decode_size=20")[0] == 20
  assert read("data.value_range=(0,4095)") == (9, None, None)


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
  ],
)
def test_an_impossible_written_config_is_refused(written, changes, message):
  with pytest.raises(ConfigError, match=message):
    load_config(written(load_config("digits"), **changes))


def test_every_shipped_file_is_listed():
  names = sorted(path.stem for path in (runs.ROOT / "configs").glob("*.py"))
  with pytest.raises(ConfigError) as error:
    configs.find("nothing")
  for name in {name for name in names if name[0] != "_"}:
    assert name in str(error.value)
