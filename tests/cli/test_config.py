"""`vitx config` prints every field with its default; its output is the config of the same run."""

import json
import subprocess
import sys

import jax
import pytest

from tests.slow import all_but
from vitx.analysis.implementations import implementations
from vitx.cli.main import main
from vitx.config.describe import complete, describe
from vitx.config.loader import load_config
from vitx.models import MODELS
from vitx.tasks import build_task
from vitx.tasks.settle import complete_config
from vitx.training.trial import make_training_step


def printed(capsys, *arguments):
  capsys.readouterr()
  assert main(["config", *arguments]) == 0
  return capsys.readouterr().out


@pytest.fixture
def written(capsys, tmp_path):
  """A function that prints a config to a file, and returns the file's name."""

  def write(*arguments):
    path = tmp_path / "x.json"
    path.write_text(printed(capsys, *arguments))
    return str(path)

  return write


def test_the_printed_config_has_every_field(capsys):
  tree = json.loads(printed(capsys, "configs/vix_cifar10.py:vip"))
  assert set(load_config("vix_cifar10:vip")) == set(tree)
  assert tree["model"]["token_mixer"]["stabilizer"] == "batch"  # set by the row
  assert tree["model"]["token_mixer"]["head_dim"] is None  # a default
  assert tree["optimizer"]["b2"] == 0.999 and tree["schedule"]["warmup"] == "0 steps"
  assert tree["model"]["dtype"] == "float32" and tree["data"]["mean"] == [0.5] * 3
  # Fields that the model sets are no fields of a config.
  assert not {"num_heads", "layer", "depth", "dtype", "seed"} & set(tree["model"]["token_mixer"])
  assert {"name", *MODELS["vit"].PARTS} <= set(tree["model"])


def test_flags_and_overrides_are_applied(capsys):
  tree = json.loads(printed(capsys, "digits:performer,seed=3", "--config.optimizer=optax:lion"))
  assert tree["seed"] == 3 and tree["optimizer"]["name"] == "optax:lion"
  assert tree["optimizer"]["b1"] == 0.9 and "learning_rate" not in tree["optimizer"]


def test_records_of_choices_are_made_again_only_if_code_may_differ(capsys, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  whole = printed(capsys, "digits:fnet")
  monkeypatch.setattr("vitx.cli.config.record_all", dict)
  assert printed(capsys, "digits:fnet") == whole
  (records,) = (tmp_path / "vitx").iterdir()
  assert "model.token_mixer=xcit" in json.loads(records.read_bytes())["records"]
  monkeypatch.setattr("vitx.cli.config.version", lambda package: "another")
  assert printed(capsys, "digits:fnet") == whole  # of modules
  assert not json.loads(records.read_bytes())["records"]


def test_a_config_is_read_without_jax(capsys, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  text = "finetune:dinov3_s,token_mixer=bigbird,token_mixer.block=4,model.norm.epsilon=1e-3"
  whole = printed(capsys, text)
  code = f"import sys; from vitx.cli.main import main; main({['config', text]!r})"
  code += "; assert not {'jax', 'flax', 'optax'} & set(sys.modules)"
  command = [sys.executable, "-c", code]
  assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == whole


ROWS = [
  "vix_cifar10:rope_vil,model.depth=1",  # the positions set fields of the mixer
  "vix_cifar10:cvt",
  "simplified_cifar10:mimetic_vanilla_w128_d8,model.depth=1",
  "bbvit_tiny_imagenet:tiny_authors_bbvit,model.depth=1",
  "cifar10:swin,model.depth=(1,1,1)",
  "cifar10:resnet20",
]


@pytest.mark.parametrize("row", all_but(ROWS[0], of=ROWS))
def test_a_printed_config_is_read_as_the_same_run(row, written):
  plain = load_config(row)
  whole = load_config(written(row))
  assert complete(whole) == complete(plain)
  plain, whole = complete_config(plain), complete_config(whole)
  for key, value in plain.items():
    if key not in ("model", "optimizer", "schedule", "task"):
      assert whole[key] == value, key
  tasks = [build_task(config) for config in (plain, whole)]
  chosen = [implementations(task.model, task.input_spec.shape) for task in tasks]
  assert chosen[0] == chosen[1]
  shapes = [
    jax.tree.map(lambda x: (x.shape, x.dtype), make_training_step(c)[1]) for c in (plain, whole)
  ]
  assert str(shapes[0]) == str(shapes[1])


def test_the_printed_config_of_a_run_is_read_as_the_same_run(written, finished_run):
  path = str(finished_run[0] / "config.json")
  assert complete(load_config(written(path))) == complete(load_config(path))


def test_explained_fields_have_values_kinds_and_meanings(capsys):
  lines = printed(capsys, "digits", "--explain").splitlines()
  assert lines[0].split() == ["field", "value", "takes", "meaning"]
  fields = {line.split()[0]: line for line in lines[1:] if not line.startswith(" ")}
  assert set(fields) == set(describe(load_config("digits")))
  assert "int in [0, 4294967295]" in fields["seed"]
  assert "center | squash | random" in fields["data.resize_mode"]
  assert "adam | adamw | lion | muon |" in fields["optimizer.name"]
  assert "probability of a flip" in fields["augment.hflip"]
  assert "tokens in a block" in fields["model.token_mixer.block"]
