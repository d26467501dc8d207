"""Runs that are killed, stopped and started again by a user's command, `train.py`.

Each ends with the bits of an undisturbed run. A trap in the run's own process kills or stops
it at a certain step, so that no test waits for a moment.
"""

import itertools
from pathlib import Path

import pytest

from tests import runs
from tests.training.test_loop import same
from vitx.cli.main import main
from vitx.training import loop

# Whole processes, each with an import and a trace of the network.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_programs")]

# The moment when a checkpoint is written but not yet renamed, which is when it is complete.
WITHIN_A_SAVE = """
import os, signal, sys
def kill(event, arguments):
  if event == "os.rename" and "16.orbax-checkpoint-tmp" in str(arguments[0]):
    os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
"""
# An evaluation, when no save is under way.
AT_AN_EVALUATION = """
import os, resource, signal
from vitx.training import loop
validate = loop.validate
def act(run, evaluate, state, step):
  if step == {step}:
    run.store.wait()
    {action}
  return validate(run, evaluate, state, step)
loop.validate = act
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
FULL = "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))"
# A compilation of ten minutes.
COMPILING = """
import os, signal, time
from vitx.runtime import signals
from vitx.training import compilation
def compile_long(*arguments, **options):
  work = lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(600))
  signals.wait(signals.start(work))
compilation.compile_program = compile_long
"""


def saved(workdir: Path) -> int:
  """Returns the step of the newest complete checkpoint, 0 if there is none."""
  names = [path.name for path in workdir.glob("checkpoints/*")]
  return max((int(name) for name in names if name.isdigit()), default=0)


def start(workdir: Path, before: str):
  """Starts the run of `finished_run` on as many devices, after the code of a trap."""
  return runs.start(workdir, devices=2, before=before)


def go_on(workdir: Path, capsys) -> int:
  """Runs the command once more in this process; returns the step at which the run resumes."""
  capsys.readouterr()
  config = f"configs/digits.py:{runs.TINY}"
  assert main(["train", "--config", config, "--workdir", str(workdir)]) == 0
  return resumed_at(capsys.readouterr().out)


def resumed_at(output: str) -> int:
  return int(output.split("resuming")[1].split("at step ")[1].split()[0])


def same_run(a: Path, b: Path) -> None:
  assert runs.rows(a) == runs.rows(b)
  same(runs.final_state(a), runs.final_state(b))


def test_a_killed_run_ends_with_the_bits_of_an_uninterrupted_one(finished_run, tmp_path, capsys):
  """SIGKILL comes during a save, then between two saves."""
  runs.finish(start(tmp_path, WITHIN_A_SAVE), code=-9)
  assert any(tmp_path.glob("checkpoints/16.orbax-checkpoint-tmp*"))
  steps = [saved(tmp_path)]
  output = runs.finish(start(tmp_path, AT_AN_EVALUATION.format(step=30, action=KILL)), code=-9)
  assert resumed_at(output) == steps[0] and not any(tmp_path.glob("checkpoints/*tmp*"))
  steps += [saved(tmp_path), go_on(tmp_path, capsys)]
  assert steps[2] == steps[1] and all(a < b for a, b in itertools.pairwise([0, *steps[:2], 30]))
  same_run(finished_run[0], tmp_path)


def test_a_masked_autoencoder_that_is_killed_ends_as_early(tmp_path):
  """SIGKILL comes at the evaluation that ends the run early, since nothing improves.

  There is no moving average: its rounding differs by processor, and may seem an improvement.
  """
  masked = "task=masked_autoencoder", "task.decoder_width=16", "task.decoder_depth=1"
  still = "learning_rate=0.0", "ema_decay=0.0", "evaluation.every=3", "evaluation.stop_early=2"
  overrides = (*masked, *still, *runs.PLAIN)
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  trap = AT_AN_EVALUATION.format(step=9, action=KILL)
  runs.finish(runs.start(killed, *overrides, devices=2, before=trap), code=-9)
  assert saved(killed) < 9
  for workdir in (killed, whole):
    loop.train(runs.tiny(*overrides), workdir)
  assert saved(killed) == saved(whole) == 9
  same_run(whole, killed)


def test_a_signal_breaks_off_a_compilation(tmp_path):
  output = runs.finish(start(tmp_path, COMPILING), code=75)
  assert "run the same command again to resume" in output
  assert "compiling" in output and "compiling:" not in output


def test_many_steps_on_two_virtual_devices_do_not_deadlock(tmp_path):
  """Without a limit on the steps in flight, XLA's collectives would deadlock on virtual devices."""
  never = ("evaluation.every=1000 steps", "checkpoint.every=1000 steps", "log_every=1000 steps")
  process = runs.start(tmp_path, "duration=300 steps", *never, *runs.PLAIN, devices=2)
  output = runs.finish(process, timeout=240)
  assert "devices: 2 x cpu" in output
  assert saved(tmp_path) == 300


def test_a_full_disk_stops_the_run_and_keeps_the_last_checkpoint(finished_run, tmp_path, capsys):
  """A limit on the size of files has the effect of a full disk: writes raise an error."""
  output = runs.finish(start(tmp_path, AT_AN_EVALUATION.format(step=10, action=FULL)), code=1)
  assert "CheckpointError" in output and "The last one, 8, is untouched" in output
  assert saved(tmp_path) == 8 and go_on(tmp_path, capsys) == 8
  same_run(finished_run[0], tmp_path)
