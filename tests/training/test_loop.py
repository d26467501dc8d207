"""The training loop in this process: exact resumption, errors, and nothing lost."""

import ast
import json
import math
import os
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from tests.training.interruption import train_until
from vitx.checkpoints.load import load
from vitx.checkpoints.store import CheckpointStore
from vitx.checkpoints.workdir import check_place, read_config, to_plain
from vitx.config.errors import ConfigError
from vitx.data.dataset import spread
from vitx.data.sources import open_source
from vitx.ops.implementation import current_rule
from vitx.ops.rule import FAMILIES, write_families
from vitx.tasks.classification import Classification
from vitx.tasks.classification_figures import summarize_classification
from vitx.tasks.settle import resolve
from vitx.training import loop
from vitx.training.experiment import make_experiment
from vitx.training.failures import NonFiniteError
from vitx.training.record.recorder import Record, Recorder
from vitx.training.step import Step


def same(a, b):
  a, b = jax.tree_util.tree_leaves_with_path(a), jax.tree_util.tree_leaves_with_path(b)
  assert len(a) == len(b) > 20
  for (path, x), (_, y) in zip(a, b, strict=True):
    np.testing.assert_array_equal(x, y, err_msg=str(path))


def test_a_run_leaves_its_files_and_rows(finished_run):
  workdir, result = finished_run
  assert result.finished and result.step == 40
  names = {path.name for path in workdir.iterdir()}
  assert names == {"config.json", "environment.json", "metrics.jsonl", "checkpoints", "log.txt"}
  log = (workdir / "log.txt").read_text()
  assert f"workdir: {workdir}\n" in log and "step 40  validation: top-1" in log
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
  assert environment["sparse_kernel"] == "xla"
  assert environment["data"]["examples"] == {"train": 1294, "validation": 144, "test": 359}
  assert read_config(workdir)["model"]["num_classes"] == 10


def test_train_rows_have_the_norms_of_their_last_step(finished_run):
  train = [row for row in runs.rows(finished_run[0]) if row["kind"] == "train"]
  params = runs.final_state(finished_run[0])["params"]
  norm = math.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(params)))
  assert train[-1]["parameter_norm"] == pytest.approx(norm, rel=1e-6)
  assert all(0 < row["gradient_norm"] < 10 and 0 <= row["top1"] <= 1 for row in train)
  assert train[-1]["top1"] > 0.15
  assert len({row["parameter_norm"] for row in train}) == len(train)


def test_train_rows_have_the_means_since_the_last_and_the_rate_of_their_step(tmp_path):
  """A step in float16 that overflows has an infinite gradient, and JSON has no infinity."""
  recorder = Recorder(
    loop.make_experiment(runs.tiny()), str(tmp_path), Record(), start=0, write=True
  )
  for step in range(10):
    gradient = math.inf if step == 4 else -step
    figures = {"loss": step**2, "top1": 0.1 * step, "learning_rate": step}
    recorder.count_step(step, figures | {"gradient_norm": gradient}, {"parameter_norm": 3.0})
  first, second = runs.rows(tmp_path)
  assert (first["step"], first["loss"], first["top1"]) == (5, 6.0, pytest.approx(0.2))
  assert (second["step"], second["loss"], second["top1"]) == (10, 51.0, pytest.approx(0.7))
  assert (second["learning_rate"], second["gradient_norm"]) == (9, -9)
  assert first["gradient_norm"] is None and first["parameter_norm"] == 3.0
  for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
    json.loads(line, parse_constant=pytest.fail)


def test_a_finished_run_is_tested_again_and_trains_no_more(finished_run, run_copy):
  before = runs.contents(run_copy / "checkpoints")
  again = loop.train(runs.tiny(), run_copy)
  assert again.test == finished_run[1].test
  assert runs.contents(run_copy / "checkpoints") == before
  assert [row["kind"] for row in runs.rows(run_copy)].count("test") == 1


def test_a_run_keeps_the_rule_of_auto_that_it_began_with(run_copy, tmp_path, monkeypatch, capsys):
  before = json.loads((run_copy / "environment.json").read_text())
  assert before["rule"]["source"] == "cpu.json of the package"
  monkeypatch.setenv("VITX_CHOICES", str(tmp_path))
  families = {name: {"masked": [[7, 7]]} for name in FAMILIES}
  write_families(tmp_path / "cpu.json", "cpu", families)
  loop.train(runs.tiny(), run_copy)
  after = json.loads((run_copy / "environment.json").read_text())
  assert {name: after[name] for name in ("rule", "implementations")} == {
    name: before[name] for name in ("rule", "implementations")
  }
  out = capsys.readouterr().out
  assert "goes on with the choices of cpu.json of the package, with which this run began" in out
  assert f"{tmp_path / 'cpu.json'} would make others now" in out


def test_a_run_without_a_rule_of_this_device_takes_the_current_rule(tmp_path, capsys):
  today = current_rule()
  assert loop.provenance.choose_rule(tmp_path) == today
  path, tiles = tmp_path / "environment.json", {"float32": {"64": None}}
  stored = today.to_json() | {"tiles": tiles}
  path.write_text(json.dumps({"rule": stored | {"device_kind": "another"}}))
  assert loop.provenance.choose_rule(tmp_path) == today and not capsys.readouterr().out
  path.write_text(json.dumps({"rule": stored}))
  assert loop.provenance.choose_rule(tmp_path).tiles == {"float32": {64: None}}
  assert "would make others now" in capsys.readouterr().out


def test_a_stopped_run_goes_on_bit_for_bit(finished_run, tmp_path, monkeypatch):
  """Step 13 is between two rows of the log; `test_a_run_that_was_disturbed` stops at a save."""
  stopped = train_until(13, runs.tiny(), tmp_path, monkeypatch)
  assert not stopped.finished and stopped.step == 13
  resumed = loop.train(runs.tiny(), tmp_path)
  assert resumed.test == finished_run[1].test
  assert runs.rows(tmp_path) == runs.rows(finished_run[0])
  same(runs.final_state(tmp_path), runs.final_state(finished_run[0]))


def test_another_config_is_refused_with_a_diff(finished_run):
  workdir, _ = finished_run
  before = runs.contents(workdir)
  with pytest.raises(ConfigError) as error:
    loop.train(runs.tiny("seed=1", "model.width=32"), workdir)
  for line in ("  seed: 0 in the workdir, 1 now", "  model.width: 16 in the workdir, 32 now"):
    assert line in str(error.value)
  assert runs.contents(workdir) == before


def test_a_full_disk_is_noticed_before_compiling(tmp_path, monkeypatch):
  usage = type("Usage", (), {"free": 10_000})
  monkeypatch.setattr("vitx.checkpoints.workdir.shutil.disk_usage", lambda path: usage)
  monkeypatch.setattr(loop.compilation, "compile_steps", lambda *a: pytest.fail("compiled"))
  with pytest.raises(ConfigError, match=r"0 MiB free.*checkpoint.keep"):
    loop.train(runs.tiny(), tmp_path / "run")
  assert not list((tmp_path / "run").iterdir())


def test_a_run_on_a_disk_that_its_checkpoints_fill_goes_on(tmp_path, monkeypatch):
  usage = type("Usage", (), {"free": 2**20})
  monkeypatch.setattr("vitx.checkpoints.workdir.shutil.disk_usage", lambda path: usage)
  # The newest two and the best.
  monkeypatch.setattr("vitx.checkpoints.workdir.list_steps", lambda path: [10, 20, 30])
  check_place(tmp_path, state_bytes=2**20, keep=2)
  with pytest.raises(ConfigError, match=r"1 MiB free, but 2 more checkpoints of 1\.0 MiB"):
    check_place(tmp_path, state_bytes=2**20, keep=3)


def leap(run):
  """Returns a user's schedule, whose rate is far too high from step 8 on."""
  return lambda step: jnp.where(step < 8, 1.0, 1e33)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(tmp_path):
  with pytest.raises(NonFiniteError, match=r"at step (9|1\d).*last good checkpoint is 8\."):
    loop.train(runs.tiny(f"schedule={__name__}:leap", *runs.PLAIN), tmp_path)
  assert os.listdir(tmp_path / "checkpoints") == ["8"]
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(runs.final_state(tmp_path)))


@pytest.mark.slow
def test_a_gradient_in_float16_that_no_loss_scale_makes_finite_stops_the_run(tmp_path, monkeypatch):
  """Each of 16 steps halves the scale of 2^16; at a scale of 1 nothing is left to try."""
  compute = Step._gradient

  def spoil(self, *arguments):
    loss, grads, *rest = compute(self, *arguments)
    return loss, jax.tree.map(lambda x: x * jnp.nan, grads), *rest

  monkeypatch.setattr(Step, "_gradient", spoil)
  with pytest.raises(
    NonFiniteError, match=r"gradient_norm is nan at step 16; .*checkpoint is 16\."
  ):
    loop.train(runs.tiny("model.dtype=float16", *runs.PLAIN), tmp_path)
  scales = [row["loss_scale"] for row in runs.rows(tmp_path) if row["kind"] == "train"]
  assert scales == [2.0 ** (16 - step) for step in (4, 9, 14)]


@pytest.mark.slow
def test_an_evaluation_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(
  tmp_path, monkeypatch
):
  """A state whose loss is not a number is saved neither as the last nor as the best."""
  calls = []

  def summarize(self, sums):
    calls.append(sums)
    figures = summarize_classification(sums)
    return figures | {"nll": float("nan")} if len(calls) == 2 else figures

  monkeypatch.setattr(Classification, "summarize", summarize)
  with pytest.raises(
    NonFiniteError, match=r"evaluation's nll is nan at step 20; .*checkpoint is 16\."
  ):
    loop.train(runs.tiny(), tmp_path)
  steps = [int(path.name) for path in (tmp_path / "checkpoints").iterdir()]
  assert max(steps) == 16
  assert 20 not in [row["step"] for row in runs.rows(tmp_path) if row["kind"] == "validation"]


def test_training_and_checkpoints_know_no_task():
  """The code without its docstrings and comments does not contain the words of one task."""
  root = Path(loop.__file__).parents[1]
  for path in [*(root / "training").glob("*.py"), *(root / "checkpoints").glob("*.py")]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
      if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
        node.body = node.body[1:]
    code = ast.unparse(tree)
    assert not re.search("top1|label|image", code), path


def test_a_dry_run_writes_nothing(tmp_path, capsys):
  loop.train(runs.tiny(), tmp_path / "run", dry_run=True)
  printed = capsys.readouterr().out
  assert "s per step" in printed and "compiled memory per device" in printed
  assert "Total: " in printed  # parameters
  (start,) = (line for line in printed.splitlines() if line.startswith("start: "))
  assert all(f"{part} " in start for part in ("data", "tracing", "compiling"))
  assert not (tmp_path / "run").exists()


def short():
  evaluation = ("evaluation.limit=10", "evaluation.attention_entropy=5")
  return runs.tiny("stop_after=3 steps", *evaluation)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
  """A run that ends before its first regular row, with an evaluation of a few examples."""
  workdir = tmp_path_factory.mktemp("short")
  return workdir, loop.train(short(), workdir)


def test_a_short_run_has_a_header_and_a_row_at_its_end(short_run):
  workdir, _ = short_run
  (row,) = (row for row in runs.rows(workdir) if row["kind"] == "train")
  assert row["step"] == 3 and row["attention_entropy/block_00"] > 0
  printed = (workdir / "log.txt").read_text()
  lines = printed.partition("compiled memory")[0].splitlines()
  header = [line for line in lines if not line.startswith("compiling")]  # or shared programs
  assert len(header) < 10 and not any(line.startswith("|") for line in header)
  for line in (
    "devices: 2 x cpu",
    "data: digits, examples 1,294 train, 144 validation, 359 test, 10 classes",
    "steps: 3 of 32 examples, 40.4 per epoch",
    "token mixers: 1 x ",
    "warning: 3 steps are too few to learn",
    "warning: log_every=",
  ):
    assert any(shown.startswith(line) for shown in header), (line, header)
  assert "2,762 parameters" in printed and "step 3/3" in printed


def test_a_quick_look_takes_some_of_validation_and_all_of_test(short_run):
  workdir, result = short_run
  assert [r["examples"] for r in runs.rows(workdir) if r["kind"] == "validation"] == [10]
  assert result.test["examples"] == 359


def resolved(*overrides):
  config = runs.tiny(*overrides)
  return resolve(config, open_source(config.data, 0))


def test_logging_and_cadence_may_change(finished_run, tmp_path):
  cadences = "log_every=4 steps", "checkpoint.keep=3", "evaluation.every=20 steps"
  config = resolved(*cadences, "evaluation.stop_early=4")
  loop.provenance.check_same_run(finished_run[0], config, "")
  plateau = "schedule={'name':'plateau'}"
  stored = to_plain(resolved(plateau, "duration=5 steps"))
  (tmp_path / "config.json").write_text(json.dumps(stored))
  loop.provenance.check_same_run(tmp_path, resolved(plateau, "duration=9 steps"), "")
  with pytest.raises(ConfigError, match=r"evaluation\.every: .* in the workdir"):
    loop.provenance.check_same_run(tmp_path, resolved(plateau, "evaluation.every=3 steps"), "")


def halve(run):
  """Returns a user's schedule, which falls to a half."""
  return lambda step: 1 - step / (2 * run.total_steps)


# No evaluation is 10 times better than the first, so each later one lowers the rate.
FALLING = "schedule={'name':'plateau','patience':0,'factor':0.5,'threshold':10.0,'mode':'max'}"
FREE_END = ("constant", "plateau")  # schedules of which the duration may be longer
SETTINGS = {
  "plateau": FALLING,
  "constant": "schedule=constant",
  "cosine": "schedule={'name':'cosine','warmup':'2 steps'}",
  "own": f"schedule={__name__}:halve",
}
# No event falls on step 7; the only row of kind "train" is that of the end.
CADENCES = ("duration=12 steps", "evaluation.every=6", "checkpoint.every=4", "log_every=20")
CADENCES += runs.PLAIN


def outcome(workdir):
  """Returns the parts of a workdir that must not depend on how often the run was stopped."""
  with CheckpointStore(workdir / "checkpoints", read_only=True) as store:
    step = store.steps()[-1]
    last = store.restore(step)
  record = {name: value for name, value in last.record.items() if name != "seconds"}
  if record["onward"]:
    record["onward"].pop("seconds")
  return runs.rows(workdir), step, record, last.state


@pytest.mark.slow
def test_a_stopped_run_has_the_learning_rates_of_the_whole_run():
  """So one schedule that depends on the run's length, and one that does not, serve for all."""
  for name, setting in SETTINGS.items():
    stops = ((), ("stop_after=7 steps",), *([("duration=7 steps",)] if name in FREE_END else []))
    configs = [runs.tiny(setting, *CADENCES, *stop) for stop in stops]
    schedules = [make_experiment(config).step.schedule for config in configs]
    whole, *others = (jax.vmap(schedule)(np.arange(12)) for schedule in schedules)
    for other in others:
      np.testing.assert_array_equal(other, whole, name)


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
  """The parts of `left` of a run without a stop."""
  workdir = tmp_path_factory.mktemp("whole")
  loop.train(runs.tiny(FALLING, *CADENCES), workdir)
  return outcome(workdir)


@pytest.mark.slow  # whole runs
@pytest.mark.parametrize(
  "stops",
  [
    ("duration=7 steps",),
    # Step 3 is past at the end, so nothing is trained.
    ("stop_after=3", "stop_after=6", "stop_after=11", "stop_after=3"),
  ],
)
def test_a_run_that_ends_early_and_goes_on_equals_a_whole_run(stops, tmp_path, never_stopped):
  for stop in stops:
    stopped = loop.train(runs.tiny(FALLING, *CADENCES, stop), tmp_path)
    assert stopped.finished and stopped.test["step"] <= stopped.step < 12
    last = [row for row in runs.rows(tmp_path) if row["kind"] == "validation"][-1]
    assert last["step"] == stopped.step  # evaluated where it stops, for this run alone
    assert load(tmp_path).step == stopped.test["step"]
  loop.train(runs.tiny(FALLING, *CADENCES), tmp_path)
  again = outcome(tmp_path)
  assert again[2]["plateau"]["scale"] < 1 and again[:3] == never_stopped[:3]
  same(again[3], never_stopped[3])


@pytest.mark.parametrize("mode", ["max", "min"])
def test_evaluations_without_a_better_figure_are_counted_and_the_best_is_the_last_of_equals(mode):
  record, counts = Record(), []
  for step, value in enumerate([1, 2, 2, 1, 3, 3, 0]):
    record.improve(step, value if mode == "max" else -value, mode)
    counts.append(record.waited)
  assert counts == [0, 0, 1, 2, 0, 1, 2]
  assert (record.best_step, abs(record.best_value)) == (5, 3)
  assert record.is_over(2) and not record.is_over(3) and not record.is_over(None)


# Nothing learns, so no evaluation after the first, at step 3, is better.
STILL = ("learning_rate=0.0", "duration=20 steps", "evaluation.every=3", "checkpoint.every=4")
PATIENT = (*STILL, "log_every=5", "evaluation.stop_early=2", *runs.PLAIN)


@pytest.fixture(scope="module")
def stopped_early(tmp_path_factory):
  """The parts of `left` of a run that ended early, and the run's result."""
  workdir = tmp_path_factory.mktemp("early")
  result = loop.train(runs.tiny(*PATIENT), workdir)
  return outcome(workdir), result


@pytest.mark.slow  # a whole run
def test_a_run_without_a_better_evaluation_ends_early(stopped_early):
  (rows, step, record, _), result = stopped_early
  assert result.finished and result.step == 9 == step and result.test["step"] == 9
  assert [row["step"] for row in rows if row["kind"] == "validation"] == [3, 6, 9]
  assert rows[-1]["kind"] == "test" and record["waited"] == 2


def lose(monkeypatch, name):
  """Makes a function of the loop fail, as if the process were killed there."""

  def fail(*arguments):
    raise KeyboardInterrupt

  monkeypatch.setattr(loop, name, fail)


@pytest.mark.slow
@pytest.mark.parametrize("at", [8, "saved"])
def test_a_run_that_was_disturbed_ends_as_early(at, tmp_path, monkeypatch, stopped_early):
  config = runs.tiny(*PATIENT)
  if at == "saved":  # after the last save, before the test
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
      lose(patch, "test_best")
      loop.train(config, tmp_path)
    assert runs.rows(tmp_path)[-1]["kind"] == "validation"
  else:
    assert not train_until(at, config, tmp_path, monkeypatch).finished
  result = loop.train(config, tmp_path)
  again, (whole, expected) = outcome(tmp_path), stopped_early
  assert (result.step, result.finished, result.test) == (9, True, expected.test)
  assert again[:3] == whole[:3]
  same(again[3], whole[3])


@pytest.mark.slow
def test_a_look_at_test_and_examples_on_the_devices_change_nothing(finished_run, tmp_path):
  """The rows of the test split are added, and everything else is equal."""
  loop.train(runs.tiny("evaluation.on_test=True", "data.device=always"), tmp_path)
  seen = [row for row in runs.rows(tmp_path) if row["kind"] == "test_seen"]
  assert [row["step"] for row in seen] == [10, 20, 30, 40]
  assert {row["examples"] for row in seen} == {359}
  others = [row for row in runs.rows(tmp_path) if row["kind"] != "test_seen"]
  assert others == runs.rows(finished_run[0])
  best = others[-1]["step"]
  (same_step,) = (row for row in seen if row["step"] == best)
  assert same_step["nll"] == others[-1]["nll"]
  same(runs.final_state(tmp_path), runs.final_state(finished_run[0]))


def test_some_of_the_examples_are_spread_over_all():
  some = spread(range(144), 10)
  assert [some[i] for i in range(len(some))] == [0, 14, 28, 43, 57, 72, 86, 100, 115, 129]
  assert len(spread(range(4), 10)) == 4


def test_no_tensorflow_was_needed():
  assert "tensorflow" not in sys.modules
