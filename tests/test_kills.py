"""Runs that are killed, stopped and started again as a user's would be: through `train.py`."""

import itertools
import resource
import shutil
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tests import runs

pytestmark = pytest.mark.slow  # whole processes, each with an import and a compilation


def saving(workdir: Path) -> bool:
  """Whether a save is under way: Orbax renames its directory when it is complete."""
  return any(workdir.glob("checkpoints/*.orbax-checkpoint-tmp*"))


def saved(workdir: Path) -> int:
  """The newest complete checkpoint's step, 0 if there is none."""
  names = [path.name for path in workdir.glob("checkpoints/*")]
  return max((int(name) for name in names if name.isdigit()), default=0)


def wait_until(condition, process, seconds: float = 240.0) -> None:
  """Polls often enough to catch a save; fails if the process ends first."""
  deadline = time.monotonic() + seconds
  while not condition():
    assert process.poll() is None, process.communicate()[0][-4000:]
    assert time.monotonic() < deadline, "no progress"
    time.sleep(0.0005)


def same_run(a: Path, b: Path) -> None:
  assert runs.rows(a) == runs.rows(b)
  x, y = (jax.tree_util.tree_leaves_with_path(runs.final_state(w)) for w in (a, b))
  assert len(x) == len(y) > 20
  for (path, left), (_, right) in zip(x, y, strict=True):
    np.testing.assert_array_equal(left, right, err_msg=str(path))


@pytest.mark.parametrize(
  ("density", "kills", "steps"), [(False, 4, 200), (True, 1, 100)], ids=["vit", "density"]
)
def test_kill_and_resume(tmp_path, density, kills, steps):
  """SIGKILLs, half of them while a save is under way; the end is bit-identical."""
  overrides = (f"duration={steps} steps", "checkpoint.every=16 steps", "evaluation.every=50 steps")
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  runs.finish(runs.start(whole, *overrides, density=density))
  resumed_at, during_save = [], 0
  for kill in range(kills):
    before = saved(killed)
    process = runs.start(killed, *overrides, density=density)
    # Past at least one more checkpoint, then either within a save or between two of them.
    wait_until(lambda: saved(killed) > before, process)  # noqa: B023
    if kill % 2 == 0:
      wait_until(lambda: saving(killed), process)
    process.send_signal(signal.SIGKILL)
    during_save += saving(killed)
    output, _ = process.communicate()
    if kill > 0:
      resumed_at.append(int(output.split("resuming")[1].split("at step ")[1].split()[0]))
  output = runs.finish(runs.start(killed, *overrides, density=density))
  resumed_at.append(int(output.split("resuming")[1].split("at step ")[1].split()[0]))
  assert during_save >= kills // 3
  assert len(resumed_at) == kills
  assert resumed_at[0] > 0 and all(a < b for a, b in itertools.pairwise(resumed_at))
  same_run(whole, killed)


SPARSE = ("duration=150 steps", "checkpoint.every=1000 steps", "evaluation.every=75 steps")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """An uninterrupted run that saves seldom."""
  workdir = tmp_path_factory.mktemp("whole")
  runs.finish(runs.start(workdir, *SPARSE))
  return workdir


def test_a_signal_saves_and_the_same_command_goes_on(whole, tmp_path):
  stopped = tmp_path / "stopped"
  process = runs.start(stopped, *SPARSE)
  metrics = stopped / "metrics.jsonl"
  wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 3, process)
  process.send_signal(signal.SIGTERM)
  output = runs.finish(process, code=75)
  assert "SIGTERM" in output and "the same command goes on" in output
  assert 0 < saved(stopped) < 150
  runs.finish(runs.start(stopped, *SPARSE))
  same_run(whole, stopped)


def test_a_signal_breaks_off_a_compilation(tmp_path):
  deep = ("model.depth=40", "model.stochastic_depth=0")
  settings = {"JAX_ENABLE_COMPILATION_CACHE": "0", "XLA_FLAGS": ""}
  process = runs.start(tmp_path, *deep, environment=settings)
  printed = iter(process.stdout.readline, "")
  assert any(line.startswith("compiling") for line in printed)
  time.sleep(2)  # while it traces, or compiles
  process.send_signal(signal.SIGINT)
  start = time.monotonic()
  output = runs.finish(process, code=75)
  assert "the same command goes on" in output and "compiling:" not in output
  assert time.monotonic() - start < 60


def test_a_workdir_that_is_deleted_meanwhile_is_written_again(whole, tmp_path):
  workdir = tmp_path / "run"
  process = runs.start(workdir, *SPARSE)
  metrics = workdir / "metrics.jsonl"
  wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 3, process)
  workdir.rename(tmp_path / "gone")
  runs.finish(process)
  same_run(whole, workdir)
  assert {path.name for path in workdir.iterdir()} == {path.name for path in whole.iterdir()}


def test_many_steps_on_two_virtual_devices_without_evaluation_or_save(tmp_path):
  """Unbounded dispatch deadlocks XLA's collectives between virtual CPU devices."""
  never = ("evaluation.every=1000 steps", "checkpoint.every=1000 steps", "log_every=1000 steps")
  process = runs.start(tmp_path, "duration=300 steps", *never, devices=2)
  output = runs.finish(process, timeout=240)
  assert "devices: 2 x cpu" in output
  assert saved(tmp_path) == 300


def test_a_full_disk_stops_the_run_and_keeps_the_last_checkpoint(tmp_path):
  """A limit on file size stands for the full disk: writes fail with an error in the same place."""
  runs.finish(runs.start(tmp_path, "duration=8 steps", "schedule=constant"))
  assert saved(tmp_path) == 8
  process = runs.start(tmp_path, "duration=24 steps", "schedule=constant")
  resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4000, 4000))
  output = runs.finish(process, code=1)
  assert "CheckpointError" in output and "The last one, 8, is untouched" in output
  assert saved(tmp_path) == 8
  runs.finish(runs.start(tmp_path, "duration=24 steps", "schedule=constant"))
  assert saved(tmp_path) == 24


def test_a_crash_in_a_config_loses_nothing(finished_run, tmp_path):
  workdir = shutil.copytree(finished_run[0], tmp_path / "run")
  before = runs.contents(workdir)
  output = runs.finish(runs.start(workdir, "seed=5"), code=1)
  assert "ConfigError" in output and "seed: 0 in the workdir, 5 now" in output
  assert "Traceback" not in output
  assert runs.contents(workdir) == before
