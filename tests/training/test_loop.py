"""The loop in this process: exact resumption, honest failures, nothing lost."""

import ast
import json
import re
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from vitx.checkpoints.errors import ShapeMismatch
from vitx.checkpoints.workdir import read_config
from vitx.cli.configs import load_config
from vitx.errors import ConfigError
from vitx.tasks.classification import Classification, summarize_classification
from vitx.training import compilation, failures, loop
from vitx.training.failures import EXIT_INTERRUPTED, NonFiniteError, OutOfMemoryError
from vitx.training.recorder import Record


def same(a, b):
  a, b = jax.tree_util.tree_leaves_with_path(a), jax.tree_util.tree_leaves_with_path(b)
  assert len(a) == len(b) > 20
  for (path, x), (_, y) in zip(a, b, strict=True):
    np.testing.assert_array_equal(x, y, err_msg=str(path))


def snapshot(directory):
  return {p: p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """An uninterrupted run."""
  workdir = tmp_path_factory.mktemp("finished")
  return workdir, loop.train(runs.tiny(), workdir)


def test_what_a_run_leaves(finished):
  workdir, result = finished
  assert result.finished and result.step == 40
  names = {path.name for path in workdir.iterdir()}
  assert names == {"config.json", "environment.json", "metrics.jsonl", "checkpoints"}
  kinds = [(row["kind"], row["step"]) for row in runs.rows(workdir)]
  train = [step for kind, step in kinds if kind == "train"]
  assert train == list(range(5, 41, 5))
  assert [step for kind, step in kinds if kind == "validation"] == [10, 20, 30, 40]
  assert kinds[-1] == ("test", result.test["step"])
  best = max(
    (row for row in runs.rows(workdir) if row["kind"] == "validation"),
    key=lambda row: (row["top1"], row["step"]),
  )
  assert result.test["step"] == best["step"]
  environment = json.loads((workdir / "environment.json").read_text())
  assert environment["versions"]["jax"] == jax.__version__
  assert environment["implementations"].keys() == {"block_0/token_mixer"}
  assert set(environment["implementations"].values()) <= {"masked", "kernelized"}
  assert environment["data"]["examples"] == {"train": 1294, "validation": 144, "test": 359}
  assert read_config(workdir).model.num_classes == 10


@pytest.mark.slow
def test_train_rows_have_the_mean_loss_and_accuracy_since_the_last(finished, tmp_path):
  loop.train(runs.tiny("log_every=10 steps"), tmp_path)
  each, pairs = ([r for r in runs.rows(d) if r["kind"] == "train"] for d in (finished[0], tmp_path))
  for name in ("loss", "top1"):
    values = np.array([row[name] for row in each]).reshape(-1, 2)
    np.testing.assert_allclose([row[name] for row in pairs], values.mean(axis=1), rtol=1e-6)
  assert all(0 <= row["top1"] <= 1 for row in each) and each[-1]["top1"] > 0.15


def test_a_finished_run_is_tested_again_and_trains_no_more(finished):
  workdir, result = finished
  before = snapshot(workdir / "checkpoints")
  again = loop.train(runs.tiny(), workdir)
  assert again.test == result.test
  assert snapshot(workdir / "checkpoints") == before
  assert [row["kind"] for row in runs.rows(workdir)].count("test") == 1


# At a save; within a window of the log.
@pytest.mark.parametrize("at", [pytest.param(8, marks=pytest.mark.slow), 13])
def test_a_stopped_run_goes_on_bit_for_bit(finished, tmp_path, monkeypatch, at):
  class StopAt(failures.StopRequest):
    """Receives SIGTERM when the step `at` is dispatched."""

    asked = 0

    @property
    def received(self):
      self.asked += 1
      return signal.SIGTERM if self.asked >= at - 2 else None

    @received.setter
    def received(self, value):
      pass

  with monkeypatch.context() as patch:
    patch.setattr(loop, "StopRequest", StopAt)
    stopped = loop.train(runs.tiny(), tmp_path)
  assert not stopped.finished and stopped.step == at
  resumed = loop.train(runs.tiny(), tmp_path)
  assert resumed.test == finished[1].test
  assert runs.rows(tmp_path) == runs.rows(finished[0])
  same(runs.final_state(tmp_path), runs.final_state(finished[0]))


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_is_set_aside_and_the_run_ends_the_same(finished, tmp_path):
  loop.train(runs.tiny(), tmp_path)
  newest = tmp_path / "checkpoints" / "40"
  data = max((p for p in (newest / "state" / "d").iterdir()), key=lambda path: path.stat().st_size)
  content = bytearray(data.read_bytes())
  content[len(content) // 2] ^= 1
  data.write_bytes(content)
  again = loop.train(runs.tiny(), tmp_path)
  assert (tmp_path / "checkpoints" / "corrupt-40").is_dir()
  assert again.test == finished[1].test
  assert runs.rows(tmp_path) == runs.rows(finished[0])
  same(runs.final_state(tmp_path), runs.final_state(finished[0]))


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(tmp_path):
  config = runs.tiny("duration=8 steps", "schedule=constant")
  loop.train(config, tmp_path)
  before = snapshot(tmp_path / "checkpoints")
  (tmp_path / "config.json").write_text(
    (tmp_path / "config.json")
    .read_text()
    .replace('"learning_rate": 0.002', '"learning_rate": 1e30')
  )
  config = runs.tiny("schedule=constant", "learning_rate=1e30")
  with pytest.raises(NonFiniteError, match=r"at step (9|1\d).*checkpoint of step 8 is good"):
    loop.train(config, tmp_path)
  assert snapshot(tmp_path / "checkpoints") == before


@pytest.mark.slow
@pytest.mark.parametrize("at", [10, 20])
def test_an_evaluation_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(
  tmp_path, monkeypatch, at
):
  """The state that gives no number is saved neither as the last nor as the best."""
  calls = []

  def summarize(self, sums):
    calls.append(sums)
    figures = summarize_classification(sums)
    return figures | {"nll": float("nan")} if len(calls) == at // 10 else figures

  monkeypatch.setattr(Classification, "summarize", summarize)
  kept = 8 if at == 10 else 16
  with pytest.raises(
    NonFiniteError, match=rf"evaluation's nll is nan at step {at}; .*of step {kept} is good"
  ):
    loop.train(runs.tiny(), tmp_path)
  steps = [int(path.name) for path in (tmp_path / "checkpoints").iterdir()]
  assert max(steps) == kept and at not in steps
  assert at not in [row["step"] for row in runs.rows(tmp_path) if row["kind"] == "validation"]


def test_the_best_is_the_last_of_equals_in_the_direction_of_the_task():
  record = Record()
  for step, value in enumerate([0.5, 0.7, 0.7, 0.6]):
    record.improve(step, value, "max")
  assert (record.best_step, record.best_value) == (2, 0.7)
  record = Record()
  for step, value in enumerate([3.0, -1.0, -1.0, 2.0]):
    record.improve(step, value, "min")
  assert (record.best_step, record.best_value) == (2, -1.0)


def test_no_word_of_one_task_in_training_and_checkpoints():
  """Outside comments and docstrings."""
  root = Path(loop.__file__).parents[1]
  for path in [*(root / "training").glob("*.py"), *(root / "checkpoints").glob("*.py")]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
      if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
        node.body = node.body[1:]
    code = ast.unparse(tree)
    assert not re.search("top1|label|image", code), path


def test_dry_run_writes_nothing(tmp_path, capsys):
  loop.train(runs.tiny(), tmp_path / "run", dry_run=True)
  printed = capsys.readouterr().out
  assert "s per step" in printed and "compiled memory per device" in printed
  assert "Total: " in printed  # parameters
  assert not (tmp_path / "run").exists()


def test_another_config_is_refused_with_a_diff(finished):
  workdir, _ = finished
  before = snapshot(workdir)
  with pytest.raises(ConfigError) as error:
    loop.train(runs.tiny("seed=1", "model.width=32"), workdir)
  for line in ("  seed: 0 in the workdir, 1 now", "  model.width: 16 in the workdir, 32 now"):
    assert line in str(error.value)
  assert snapshot(workdir) == before


@pytest.mark.slow
def test_logging_and_cadence_may_change(finished, tmp_path):
  config = runs.tiny("log_every=4 steps", "checkpoint.keep=3", "evaluation.every=20 steps")
  loop.provenance.check_same_run(finished[0], loop.make_experiment(config).config)
  plateau = "schedule={'name':'plateau'}"
  loop.train(runs.tiny(plateau, "duration=5 steps"), tmp_path)
  longer = loop.make_experiment(runs.tiny(plateau, "duration=9 steps")).config
  loop.provenance.check_same_run(tmp_path, longer)
  other = loop.make_experiment(runs.tiny(plateau, "evaluation.every=3 steps")).config
  with pytest.raises(ConfigError, match=r"evaluation\.every"):
    loop.provenance.check_same_run(tmp_path, other)


def test_changed_data_is_refused(finished):
  workdir, _ = finished
  changed = {"source": "digits", "fingerprint": "other"}
  with pytest.raises(ConfigError, match=r"has changed since this run began"):
    loop.provenance.check_same_data(workdir, changed)


def test_a_checkpoint_of_another_shape_is_no_damage(finished):
  workdir, _ = finished
  before = snapshot(workdir)
  config = json.loads((workdir / "config.json").read_text())
  config["model"]["width"] = 32
  (workdir / "config.json").write_text(json.dumps(config))
  try:
    with pytest.raises(ShapeMismatch, match="token_mixer/key/kernel"):
      loop.train(runs.tiny("model.width=32"), workdir)
  finally:
    (workdir / "config.json").write_bytes(before[workdir / "config.json"])
  assert snapshot(workdir) == before


@pytest.mark.slow
def test_plateau_lowers_the_rate_and_survives_a_restart(tmp_path):
  # No evaluation is better by 1000 %, so each second one lowers the rate.
  spec = "schedule={'name':'plateau','patience':1,'factor':0.5,'threshold':10.0}"
  config = lambda steps: runs.tiny(spec, "evaluation.every=2 steps", "log_every=1 steps", steps)  # noqa: E731
  whole = loop.train(config("duration=12 steps"), tmp_path / "a")
  rates = [row["learning_rate"] for row in runs.rows(tmp_path / "a") if row["kind"] == "train"]
  assert rates[0] == pytest.approx(2e-3) and rates[-1] < rates[0] / 2
  loop.train(config("duration=8 steps"), tmp_path / "b")
  again = loop.train(config("duration=12 steps"), tmp_path / "b")
  assert again.test["nll"] == whole.test["nll"]
  tail = lambda name: [r for r in runs.rows(tmp_path / name) if r["kind"] == "train"]  # noqa: E731
  assert tail("b") == tail("a")


@pytest.mark.slow
def test_init_from_starts_a_new_run_from_weights(finished, tmp_path, capsys):
  config = runs.tiny(f"init_from='{finished[0]}'", "duration=6 steps", "learning_rate=0.0")
  loop.train(config, tmp_path)
  printed = capsys.readouterr().out
  assert "init_from" in printed and "loaded" in printed
  # At learning rate 0 the weights are those of the other run's best checkpoint (its average).
  from vitx.checkpoints.load import load

  begun = runs.final_state(tmp_path)
  same(begun["params"], load(finished[0]).variables["params"])
  for x, y in zip(*(jax.tree.leaves(begun[name]) for name in ("params", "ema")), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8)
  assert runs.final_state(tmp_path)["step"] == 6


def test_out_of_memory_names_what_helps():
  config = runs.tiny()
  with (
    pytest.raises(OutOfMemoryError) as error,
    failures.explain_out_of_memory(config, tokens=4),
  ):
    jnp.zeros((1 << 46,), jnp.uint8).block_until_ready()  # a real one: 64 TiB
  for part in (
    "batch_size=32",
    "4 tokens",
    "token_mixer=softmax",
    "grad_accum_steps=2",
    "model.remat",
  ):
    assert part in str(error.value)


def test_other_runtime_errors_pass_through():
  with (
    pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"),
    failures.explain_out_of_memory(runs.tiny(), tokens=None),
  ):
    raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_exit_codes_are_as_documented():
  assert EXIT_INTERRUPTED == 75
  import train

  assert "75" in train.__doc__


@pytest.mark.parametrize(
  ("overrides", "parts"),
  [
    (["batch_size=33"], ["batch_size=33", "32, 34"]),
    (["grad_accum_steps=5"], ["grad_accum_steps=5", "30, 40"]),
    (["batch_size=5000"], ["batch_size=5000", "1294"]),
    (["data.source=digit"], ["digit", "Did you mean 'digits'"]),
    (["data.source=cifar10"], ["vitx prepare cifar10"]),
    (["data.splits.validation=validation"], ["validation", "train"]),
    (["stem.patch=3"], ["patch=3", "6 or 9"]),
    (["model.num_classes=11"], ["model.num_classes=11", "10"]),
    (["token_mixer=performr"], ["performr", "softmax"]),
    (["token_mixer.landmarks=3"], ["landmarks", "SoftmaxAttention"]),
    (["model.widht=3"], ["widht", "Did you mean 'width'"]),
    (["seed=-1"], ["seed=-1"]),
    (["seed=12345678901234567890"], ["seed=12345678901234567890"]),
    (["learning_rate=True"], ["learning_rate=True"]),
    (["optimizer=None"], ["optimizer=None"]),
    (["optimizer=optax:lionn"], ["optax:lionn", "Did you mean 'lion'"]),
    (["duration=99999999999 steps"], ["duration='99999999999 steps'"]),
    (["optimizer=adamv"], ["adamv", "Did you mean 'adam"]),
    (["optimizer.momentum=0.9"], ["momentum"]),
    (["schedule=cosin"], ["cosin", "Did you mean 'cosine'"]),
    (["duration=soon"], ["duration='soon'"]),
    (["log_every=0 steps"], ["log_every"]),
    (["augment.hflip=2.0"], ["augment.hflip=2.0"]),
    (["ema_decay=1.5"], ["ema_decay=1.5"]),
    (["freeze=('nothing',)"], ["nothing"]),
    (["checkpoint.keep=1"], ["checkpoint.keep=1"]),
  ],
)
def test_bad_input_is_named_before_compilation_and_loses_nothing(
  overrides, parts, tmp_path, monkeypatch
):
  monkeypatch.setattr(compilation, "compile_step", lambda *a: pytest.fail("compiled"))
  text = f"configs/digits.py:{runs.replace(runs.TINY, *overrides)}"
  with pytest.raises(ConfigError) as error:
    loop.train(load_config(text), tmp_path / "run")
  for part in parts:
    assert part in str(error.value)
  assert not (tmp_path / "run").exists()


def test_an_unwritable_workdir(tmp_path):
  (tmp_path / "file").write_text("in the way")
  with pytest.raises(ConfigError, match=r"file/run.*cannot be written"):
    loop.train(runs.tiny(), tmp_path / "file" / "run")


def test_a_full_disk_is_noticed_before_compiling(tmp_path, monkeypatch):
  from vitx.checkpoints import workdir

  usage = type("Usage", (), {"free": 10_000})
  monkeypatch.setattr(workdir.shutil, "disk_usage", lambda path: usage)
  monkeypatch.setattr(compilation, "compile_step", lambda *a: pytest.fail("compiled"))
  with pytest.raises(ConfigError, match=r"0 MiB free.*checkpoint.keep"):
    loop.train(runs.tiny(), tmp_path)


def test_no_tensorflow_was_needed():
  assert "tensorflow" not in sys.modules
