"""A sweep and a run of two processes on a real Slurm node, which `tests/slurm_node.sh` starts."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests import runs
from tests.cli.sweeps import TINY
from tests.cli.test_sweep import results
from vitx.checkpoints import lock

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    "SLURM_CONF" not in os.environ or shutil.which("srun") is None,
    reason="no Slurm: start a node by tests/slurm_node.sh and set SLURM_CONF",
  ),
]
LONG = runs.replace(
  f"softmax,{TINY}", "duration=300 steps", "checkpoint.every=25 steps", "log_every=5 steps"
).removeprefix("softmax,")
SECONDS = 280  # for the whole sweep; the polls below end by then


def command(workdir, out, *more):
  words = ["sweep", f"--config=digits.py:{LONG}", "--over=row=[softmax,fnet]", "--seeds=2"]
  words += [f"--workdir={workdir}", f"--out={out}", "--name=same", "--no-plot", *more]
  return [sys.executable, "-m", "vitx", *words]


def run(*words):
  """Runs a command to its end, with one thread in each process, and returns its output."""
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "1"}
  environment.pop("JAX_NUM_CPU_DEVICES", None)
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
  done = subprocess.run([*map(str, words)], cwd=runs.ROOT, env=environment, **pipes)
  assert done.returncode == 0, done.stdout[-4000:]
  return done.stdout


def holders(workdir) -> dict[str, int]:
  """Returns the points in training, with the numbers of their processes."""
  texts = {path.parent.name: path for path in Path(workdir).glob(f"*/{lock.POINT}")}
  read = {}
  for name, path in texts.items():
    try:
      read[name] = json.loads(path.read_text())["pid"]
    except (OSError, ValueError):  # its training has just ended or begun
      continue
  return read


def count_rows(workdir, name) -> int:
  path = Path(workdir, name, "metrics.jsonl")
  return len(path.read_text().splitlines()) if path.exists() else 0


def find_job(pid: int) -> str:
  """Returns the job of a process, as `17_0`, from its environment."""
  items = Path(f"/proc/{pid}/environ").read_text().split("\0")
  variables = dict(item.partition("=")[::2] for item in items)
  return f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"


COMMANDS = {"requeue": "scontrol requeue", "USR2": "scancel --signal=USR2", "cancel": "scancel"}


def disturb(kind, pid, end):
  """Stops a task in one of four ways; a cancelled one must not come back."""
  job = find_job(pid)
  if kind == "KILL":
    os.kill(pid, signal.SIGKILL)
  else:
    subprocess.run([*COMMANDS[kind].split(), job], check=True)
  queue = ("squeue", "--noheader", "--array", "--format=%i")
  while kind == "cancel" and job in run(*queue).split():
    assert time.monotonic() < end, f"{job} is cancelled and goes on"
    time.sleep(0.2)


def test_an_array_that_is_killed_at_random_gives_the_bits_of_one_process(tmp_path):
  """Six stops, each when a point has new rows since its last one; a lost task is replaced."""
  run(*command(tmp_path / "alone", tmp_path / "out"))
  workdir, launch = tmp_path / "sweep", ("--launch=slurm", "--slurm=time=0:20:00")
  assert "started 4 tasks, job " in run(*command(workdir, tmp_path / "own", *launch))
  draw, end = random.Random(0), time.monotonic() + SECONDS
  kinds, before = ["USR2", "requeue", "USR2", "requeue", "KILL", "cancel"], {}
  stopped = set()  # Slurm would send the second signal to the next process, which has just begun
  draw.shuffle(kinds)
  done = []
  while kinds:
    assert time.monotonic() < end, f"only {done} in time"
    fresh = [
      (name, pid)
      for name, pid in holders(workdir).items()
      if pid not in stopped
      and count_rows(workdir, name) > before.get(name, 0) + draw.randint(1, 20)
    ]
    if not fresh:
      time.sleep(0.05)
      continue
    name, pid = draw.choice(fresh)
    before[name] = count_rows(workdir, name)
    stopped.add(pid)
    try:
      disturb(kinds[-1], pid, end)
    except (OSError, KeyError):  # it has just ended
      continue
    done.append((kinds.pop(), name, before[name]))
    if done[-1][0] in ("KILL", "cancel"):
      assert "tasks" in run(*command(workdir, tmp_path / "own", *launch))
  print("kills:", done)
  output = run(*command(workdir, tmp_path / "own", *launch, "--wait"))
  assert "4 of 4 points" in output
  assert results(tmp_path / "own") == results(tmp_path / "out")


def test_two_tasks_of_a_step_train_one_run_and_one_of_them_speaks(tmp_path):
  config = f"configs/digits.py:softmax,{LONG},duration=20 steps,log_every=1 steps".replace(
    "duration=300 steps,", ""
  ).replace("log_every=5 steps,", "")
  train = [sys.executable, "train.py", f"--config={config}"]
  output = run("srun", "-n2", *train, f"--workdir={tmp_path / 'two'}")
  begins = [line.partition("  ")[0] for line in output.splitlines() if line.startswith("step ")]
  assert len(begins) == len(set(begins)) >= 20
  one = subprocess.run(
    [*train, f"--workdir={tmp_path / 'one'}"],
    cwd=runs.ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"},
    capture_output=True,
  )
  assert one.returncode == 0, one.stderr
  losses = [
    [row["loss"] for row in runs.rows(tmp_path / name) if row["kind"] == "train"]
    for name in ("two", "one")
  ]
  assert len(losses[0]) == 20
  np.testing.assert_allclose(*losses, rtol=1e-5)
