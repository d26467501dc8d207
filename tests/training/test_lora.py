"""Runs that train adapters: their checkpoints, their base, and readers of their weights."""

import shutil

import jax
import numpy as np
import pytest

import vitx
from tests import runs
from tests.configs.test_finetune_rows import tiny
from tests.interop.published import begin
from tests.test_folder_end_to_end import draw
from tests.training.interruption import train_until
from tests.training.test_loop import same
from vitx.checkpoints import tree
from vitx.checkpoints.store import CheckpointStore
from vitx.checkpoints.tree import name_arrays
from vitx.config.errors import ConfigError
from vitx.config.fields import LoraSettings, find_lora
from vitx.config.loader import load_config
from vitx.config.overrides import with_overrides
from vitx.inference.convert import export_weights
from vitx.interop import foreign
from vitx.interop.foreign_names import to_ours
from vitx.interop.repository import read_run_settings
from vitx.models import lora
from vitx.training import loop
from vitx.training.experiment import make_experiment
from vitx.training.record import provenance
from vitx.training.restore import check_beginning

ADAPTED = {f"block_0/token_mixer/{name}/kernel" for name in ("query", "value")}
HEAD = {"head/kernel", "head/bias"}


def config(base, *overrides):
  return runs.tiny(*runs.PLAIN, f"init_from='{base}'", "model.lora.rank=2", *overrides)


@pytest.fixture
def adapted(finished_run, tmp_path):
  """A run of drawn adapters that was not trained."""
  return save(config(finished_run[0]), tmp_path / "adapted")


def save(small, workdir):
  """Begins a run, draws its trained parameters and saves them; returns the workdir."""
  state, random = begin(small, workdir).load(), np.random.default_rng(0)
  params = jax.tree.map(lambda x: np.float32(random.normal(0, 0.1, x.shape)), state.params)
  with CheckpointStore(workdir / "checkpoints") as store:
    store.save(0, state.replace(params=params, ema=None), {})
  return workdir


def test_a_checkpoint_has_adapters_and_the_head_and_names_its_base(finished_run, adapted):
  state = runs.final_state(adapted)
  modules = {f"{name.removesuffix('kernel')}lora_{x}" for name in ADAPTED for x in "ab"}
  assert name_arrays(state["params"]).keys() == HEAD | modules
  stored = load_config(adapted / "config.json")
  assert len(stored.model.lora.base) == 32 and stored.init_from == str(finished_run[0])
  before = name_arrays(vitx.load(finished_run[0]).variables["params"])
  after = name_arrays(vitx.load(adapted).variables["params"])
  assert before.keys() == after.keys()
  changed = {name for name in before if not np.array_equal(before[name], after[name])}
  assert changed == ADAPTED | HEAD
  for settings in (vitx.load(adapted).settings, read_run_settings(str(adapted))):
    assert "lora" not in settings.model


def test_merged_weights_give_the_outputs_of_the_adapters(finished_run, adapted):
  experiment = make_experiment(config(finished_run[0]))
  params = runs.final_state(adapted)["params"]
  assert experiment.step.frozen.isdisjoint(name_arrays(params))
  images = np.random.default_rng(1).random((2, 8, 8, 1), np.float32)
  run = jax.jit(lambda params: experiment.task.model.apply({"params": params}, images))
  merged = run(vitx.load(adapted).variables["params"])
  np.testing.assert_allclose(merged, run(lora.merge(params, experiment.constants)), atol=1e-6)
  plain = run(lora.complete(params, experiment.constants))
  assert np.abs(merged - plain).max() > 1e-3


def test_a_base_with_another_digest_is_refused(run_copy, tmp_path, monkeypatch):
  """A reader and a run that goes on refuse it; another path of the base itself is accepted."""
  pattern = "model.lora.names='(?:query|value)'"
  workdir = str(save(config(run_copy, pattern), tmp_path / "adapted"))
  assert load_config(f"{workdir}/config.json").model.lora["names"] == ("(?:query|value)",)
  monkeypatch.chdir(tmp_path)
  elsewhere = make_experiment(config("copy", pattern), is_trial=True)
  provenance.check_same_run(workdir, elsewhere.settings, "")
  state = runs.final_state(run_copy)
  state["ema"]["head"]["bias"][0] += 1
  shutil.rmtree(run_copy / "checkpoints")
  with CheckpointStore(run_copy / "checkpoints") as store:
    store.save(40, state, {})
  with pytest.raises(
    ConfigError, match=r"copy' has the digest \w{32}, and the .* restore"
  ) as error:
    vitx.load(workdir)
  assert "\n" not in str(error.value)
  changed = make_experiment(config("copy", pattern))
  with pytest.raises(
    ConfigError, match=r"model\.lora\.base: '\w{32}' in the workdir, '\w{32}' now"
  ):
    check_beginning(changed, workdir, writes=True)


@pytest.mark.slow  # traces several networks
def test_merged_weights_begin_a_run_on_other_classes(adapted, tmp_path, capsys):
  folder = f"dataset=folder:{draw(tmp_path / 'images', 9)}", "batch_size=8", "data.channels=1"
  gray = "data.image_size=8", "data.mean=(0.5,)", "data.std=(0.3,)"
  small = config(adapted, "model.lora.names='mlp/.*'", *folder, *gray)
  state = begin(small, tmp_path / "run").load()
  assert "head         2\n  params/head/bias  [10] -> [3]" in capsys.readouterr().out
  assert state.params["head"]["bias"].shape == (3,)
  base = name_arrays(make_experiment(small).constants["base"]["params"])
  merged = name_arrays(vitx.load(adapted).variables["params"])
  for name in base.keys() - HEAD:
    np.testing.assert_array_equal(base[name], merged[name])


@pytest.mark.slow  # traces several networks
def test_the_export_to_timm_has_the_merged_weights(tmp_path):
  """A network of timm's kind, whose base is a file of timm."""
  small = with_overrides(tiny("dinov2_s", "timm_dinov2"), "model.lora.rank=2")
  workdir, file = save(small, tmp_path / "run"), str(tmp_path / "timm" / "model.safetensors")
  network = export_weights(workdir, file)
  ours, unused = to_ours(foreign.read_arrays(file)[0], 3)
  assert network.family == "timm" and not unused
  expected = name_arrays(vitx.load(workdir).variables)
  jax.tree.map(np.testing.assert_array_equal, ours, dict(expected))


@pytest.mark.parametrize(
  ("overrides", "message"),
  [
    (
      ("token_mixer=fnet",),
      r"names='query' names no kernel of this network.* are down, embed, up",
    ),
    (("model.lora.names=('query','key ')",), r"names='key ' names no kernel"),
    (("model.lora.rank=0",), r"model\.lora\.rank=0 is out of range"),
    (("init_from=''",), r"model\.lora adapts the weights of init_from, which is not set"),
    (("freeze=('stem/.*',)",), r"freeze='stem/\.\*' matches no whole name"),
  ],
)
def test_adapters_that_cannot_work_are_refused(finished_run, overrides, message):
  with pytest.raises(ConfigError, match=message):
    make_experiment(config(finished_run[0], *overrides))


def test_layer_decay_counts_the_blocks_that_have_no_adapters():
  fields = "optimizer=sgd,optimizer.weight_decay=0.0,layer_decay=0.5,model.lora.rank=2"
  small = with_overrides(
    tiny("dinov2_s", "timm_dinov2"), f"{fields},model.lora.names=block_0/.*query"
  )
  step = make_experiment(small).step
  params = tree.zeros(jax.eval_shape(step.init, jax.random.key(0)).params)
  grads = jax.tree.map(np.ones_like, params)
  updates, _ = step.optimizer.update(grads, step.optimizer.init(params), params)
  factors = {name.split("/")[0]: abs(x).max() for name, x in name_arrays(updates).items()}
  assert factors == {"stem": 0.125, "block_0": 0.25, "head": 1}


def test_the_fields_of_adapters_are_read_from_one_override():
  text = "digits:softmax,model.lora.alpha=4,model.lora.names=mlp/.*"
  adapters = find_lora(load_config(text).model)
  assert adapters == LoraSettings(rank=8, alpha=4.0, names=("mlp/.*",), base=None)
  assert find_lora(load_config("digits:softmax").model) is None
  with pytest.raises(ConfigError, match=r"no field 'model\.lora\.rnk'\. Did you mean 'rank'"):
    load_config("digits:softmax,model.lora.rnk=4")


@pytest.mark.slow  # compiles a network
def test_a_stopped_run_of_adapters_ends_with_the_same_bits(finished_run, tmp_path, monkeypatch):
  small = config(finished_run[0], "duration=20 steps", "learning_rate=0.01")
  whole, stopped = tmp_path / "whole", tmp_path / "stopped"
  result = loop.train(small, whole)
  assert not train_until(13, small, stopped, monkeypatch).finished
  assert loop.train(small, stopped).test == result.test
  assert runs.rows(whole) == runs.rows(stopped)
  same(runs.final_state(whole), runs.final_state(stopped))
  base = name_arrays(vitx.load(finished_run[0]).variables["params"])
  ended = name_arrays(vitx.load(whole).variables["params"])
  changed = {name for name in base if not np.array_equal(base[name], ended[name])}
  assert changed == ADAPTED | HEAD
