"""Runs that the loop refuses, and the messages: nothing is compiled, changed or lost."""

import json
import shutil

import jax
import jax.numpy as jnp
import pytest

from tests import runs
from vitx.checkpoints.errors import CheckpointError, ShapeMismatch
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config
from vitx.training import compilation, failures, loop
from vitx.training.failures import OutOfMemoryError
from vitx.training.record.recorder import Recorder


def test_another_config_is_refused_with_a_diff(finished_run):
  workdir, _ = finished_run
  before = runs.contents(workdir)
  with pytest.raises(ConfigError) as error:
    loop.train(runs.tiny("seed=1", "model.width=32"), workdir)
  for line in ("  seed: 0 in the workdir, 1 now", "  model.width: 16 in the workdir, 32 now"):
    assert line in str(error.value)
  assert runs.contents(workdir) == before


def test_a_checkpoint_of_another_shape_is_no_damage(run_copy):
  config = json.loads((run_copy / "config.json").read_text())
  config["model"]["width"] = 32
  (run_copy / "config.json").write_text(json.dumps(config))
  before = runs.contents(run_copy)
  with pytest.raises(ShapeMismatch, match="token_mixer/key/kernel"):
    loop.train(runs.tiny("model.width=32"), run_copy)
  after = runs.contents(run_copy)
  assert b"ShapeMismatch" in after.pop(run_copy / "log.txt")
  del before[run_copy / "log.txt"]
  assert after == before


def test_out_of_memory_names_what_helps():
  config = runs.tiny()
  with (
    pytest.raises(OutOfMemoryError) as error,
    failures.explain_out_of_memory(config, tokens=4, workdir="runs/big/"),
  ):
    jnp.zeros((1 << 46,), jnp.uint8).block_until_ready()  # a real one: 64 TiB
  for part in (
    "batch_size=32",
    "4 tokens",
    "token_mixer=softmax",
    "vitx plan --config runs/big/config.json",
  ):
    assert part in str(error.value)


def test_other_runtime_errors_pass_through():
  with (
    pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"),
    failures.explain_out_of_memory(runs.tiny(), tokens=None),
  ):
    raise jax.errors.JaxRuntimeError("INTERNAL: something else")


@pytest.mark.parametrize(
  ("overrides", "parts"),
  [
    (["data.splits.validation=validation"], ["validation", "train"]),
    (["model.num_classes=11"], ["model.num_classes=11", "10"]),
    (["learning_rate=True"], ["learning_rate=True"]),
    (["optimizer=None"], ["optimizer=None"]),
    (["duration=99999999999 steps"], ["duration='99999999999 steps'"]),
  ],
)
def test_bad_input_is_named_before_compilation_and_loses_nothing(
  overrides, parts, tmp_path, monkeypatch
):
  monkeypatch.setattr(compilation, "compile_steps", lambda *a: pytest.fail("compiled"))
  text = f"configs/digits.py:{runs.replace(runs.TINY, *overrides)}"
  with pytest.raises(ConfigError) as error:
    loop.train(load_config(text), tmp_path / "run")
  for part in parts:
    assert part in str(error.value)
  assert not (tmp_path / "run").exists()


def test_a_full_disk_is_noticed_before_compiling(tmp_path, monkeypatch):
  from vitx.checkpoints import workdir

  usage = type("Usage", (), {"free": 10_000})
  monkeypatch.setattr(workdir.shutil, "disk_usage", lambda path: usage)
  monkeypatch.setattr(compilation, "compile_steps", lambda *a: pytest.fail("compiled"))
  with pytest.raises(ConfigError, match=r"0 MiB free.*checkpoint.keep"):
    loop.train(runs.tiny(), tmp_path / "a" / "run")
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_checkpoints_that_are_deleted_at_the_end_are_missed(tmp_path, monkeypatch):
  write = Recorder.write_figures

  def write_and_delete(self, role, *given):
    write(self, role, *given)
    if role == "test":
      shutil.rmtree(tmp_path / "checkpoints")

  monkeypatch.setattr(Recorder, "write_figures", write_and_delete)
  with pytest.raises(CheckpointError, match="all checkpoints were deleted during the run"):
    loop.train(runs.tiny(), tmp_path)
  assert runs.rows(tmp_path)[-1]["kind"] == "test"  # the row of the test split is written
