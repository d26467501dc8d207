"""From a workdir to a model: which checkpoint is loaded, and what is refused.

`tests/cli/test_bad_workdirs.py` has the workdirs and checkpoints that do not exist.
"""

import gc
import json
import shutil

import jax
import numpy as np
import psutil
import pytest

import vitx
from tests import runs
from tests.interop.published import begin
from vitx.checkpoints import store as store_module
from vitx.checkpoints.errors import CorruptCheckpoint, ShapeMismatch
from vitx.checkpoints.store import CheckpointStore


@pytest.fixture(scope="module")
def run(finished_run, tmp_path_factory):
  """A run with the checkpoints 32, 40 (the best) and 48, which has other weights."""
  workdir = tmp_path_factory.mktemp("run")
  shutil.copytree(finished_run[0], workdir, dirs_exist_ok=True)
  with CheckpointStore(workdir / "checkpoints", keep=9) as store:
    newest = store.restore(40)
    state = jax.tree.map(lambda x: x + np.ones((), x.dtype), newest.state)
    store.save(48, state, newest.record | {"best_step": 40})
  return workdir


@pytest.fixture
def copy(run, tmp_path):
  return shutil.copytree(run, tmp_path / "copy")


def state_of(workdir, step):
  with CheckpointStore(workdir / "checkpoints", read_only=True) as store:
    return store.restore(step).state


@pytest.mark.parametrize(
  ("checkpoint", "step"), [("best", 40), ("latest", 48), (32, 32), ("32", 32), (48, 48)]
)
def test_load_returns_the_chosen_checkpoint(run, checkpoint, step):
  loaded = vitx.load(run, checkpoint)
  assert loaded.step == step
  assert set(loaded.variables) == {"params"}  # the optimizer's state is no variable
  jax.tree.map(
    np.testing.assert_array_equal, loaded.variables["params"], state_of(run, step)["ema"]
  )


def test_load_returns_the_best_checkpoint_by_default(run):
  loaded = vitx.load(str(run))
  assert loaded.step == 40 and loaded.workdir == str(run)
  assert loaded.class_names == tuple("0123456789")
  assert isinstance(loaded.config.data.mean, tuple)
  data = json.loads((run / "environment.json").read_text())["data"]
  assert loaded.fingerprint == data["fingerprint"]


def test_without_a_moving_average_the_parameters_are_loaded(copy):
  with CheckpointStore(copy / "checkpoints", keep=9) as store:
    newest = store.restore(48)
    del newest.state["ema"]
    store.save(56, newest.state, newest.record)
  params = vitx.load(copy, 56).variables["params"]
  jax.tree.map(np.testing.assert_array_equal, params, newest.state["params"])


def test_before_the_first_evaluation_the_best_is_the_latest(copy):
  with CheckpointStore(copy / "checkpoints", keep=9) as store:
    newest = store.restore(48)
    store.save(56, newest.state, newest.record | {"best_step": None})
  assert vitx.load(copy).step == 56


def test_a_state_that_was_not_evaluated_is_the_latest(copy):
  with CheckpointStore(copy / "checkpoints", keep=9) as store:
    newest = store.restore(48)
    store.save(56, newest.state, newest.record | {"best_step": 40, "is_evaluated": False})
  assert [vitx.load(copy, choice).step for choice in ("best", "latest")] == [40, 56]


def test_load_reads_only_the_arrays_that_it_needs(run, monkeypatch):
  read = []
  original = store_module.read_leaves

  def spy(path, described, where):
    read.extend(name.split("/")[0] for name in described)
    return original(path, described, where)

  monkeypatch.setattr(store_module, "read_leaves", spy)
  vitx.load(run)
  assert set(read) == {"params", "ema"}


@pytest.mark.slow  # 33 loads
def test_loading_again_and_again_keeps_no_memory(run):
  def load_often(times) -> int:
    for _ in range(times):
      vitx.load(run)
    gc.collect()
    return psutil.Process().memory_info().rss

  sizes = [load_often(times) for times in (3, 15, 15)]  # the first loads fill the caches
  assert np.diff(sizes).min() < 15 * 100e3  # a leak shows in both rounds


def test_a_damaged_checkpoint_is_never_loaded(copy):
  shutil.rmtree(copy / "checkpoints" / "40" / "state" / "d")
  with pytest.raises(CorruptCheckpoint, match=r"checkpoint 40 .* is corrupt"):
    vitx.load(copy)
  assert vitx.load(copy, "latest").step == 48
  assert (copy / "checkpoints" / "40").is_dir()


def test_the_newest_checkpoint_is_loaded_if_the_best_one_is_gone(copy, warnings):
  """A later one was better, which deleted the best one before it, and is damaged."""
  shutil.rmtree(copy / "checkpoints" / "40")
  assert vitx.load(copy).step == 48
  assert "the best checkpoint, 40, does not exist any more" in warnings[0]


def edit(workdir, change):
  config = json.loads((workdir / "config.json").read_text())
  change(config)
  (workdir / "config.json").write_text(json.dumps(config))


def test_an_edited_config_is_refused_at_load(copy):
  edit(copy, lambda config: config["model"].update(width=32))
  with pytest.raises(ShapeMismatch, match=r"checkpoint 40 .*") as error:
    vitx.load(copy)
  assert "block_0/token_mixer/key/kernel: float32[16, 2, 8] in the checkpoint, " in str(error.value)
  edit(copy, lambda config: config["model"].update(width=16, depth=2))
  with pytest.raises(ShapeMismatch, match=r"params/block_1/.*: nothing in the checkpoint, "):
    vitx.load(copy)


@pytest.mark.slow  # makes two experiments
def test_init_from_resizes_between_both_grids(tmp_path, capsys):
  """Images of 8 x 8 pixels have patches of 4, then of 2; 8 extra tokens join the class token.

  The embedding of the patches has another shape, and starts anew.
  """
  tokens = ("model.extra_tokens=8", "pool=cls", "posemb=learned", "schedule=constant")
  coarse = begin(runs.tiny(*tokens), tmp_path / "coarse").load()
  table = coarse.params["posemb"]["table"]
  table[:] = np.arange(table.size, dtype=np.float32).reshape(table.shape)
  with CheckpointStore(tmp_path / "coarse" / "checkpoints") as store:
    store.save(2, coarse.replace(ema=coarse.params), {"best_step": None})
  changes = ("stem.patch=2", f"init_from={tmp_path / 'coarse'}", "init_from_except=('.*/stem/.*',)")
  from_coarse = runs.tiny(*tokens, *changes)
  fine = begin(from_coarse, tmp_path / "fine").load().params["posemb"]["table"]
  printed = capsys.readouterr().out
  assert "[1, 13, 16] -> [1, 25, 16]: 9 + 2 x 2 tokens -> 9 + 4 x 4 tokens" in printed
  np.testing.assert_array_equal(fine[0, :9], table[0, :9])
