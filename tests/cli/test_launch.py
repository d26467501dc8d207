"""Launches the tasks of a sweep, through stand-ins of Slurm's commands and as local processes."""

import json
import os
import signal
import sys

import pytest
from submitit.helpers import DelayedSubmission

from tests import runs
from tests.cli.sweeps import points
from tests.cli.test_sweep import Silent, command, results, start
from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.cli import launch
from vitx.cli.live import Live
from vitx.cli.main import main
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.runtime.signals import EXIT_INTERRUPTED, StopRequest
from vitx.sweeps.sweep import State, train_points
from vitx.sweeps.workers import ONLY_ONE, WORKER

# sbatch keeps its file, or refuses a partition as Slurm does; squeue lists the tasks of a file.
SBATCH = """#!/bin/sh
if grep -q partition=gpu "$1"; then
  echo 'sbatch: error: invalid partition specified: gpu' >&2
  exit 1
fi
cp "$1" {folder}/submitted
echo Submitted batch job 17
"""
SQUEUE = '#!/bin/sh\necho "$@" > {folder}/asked\ncat {folder}/queue\n'


@pytest.fixture
def slurm(tmp_path, monkeypatch):
  """A folder with stand-ins of Slurm's commands, which come first on the path."""
  folder = tmp_path / "slurm"
  folder.mkdir()
  for name, text in {"srun": "#!/bin/sh\n", "sbatch": SBATCH, "squeue": SQUEUE}.items():
    (folder / name).write_text(text.format(folder=folder))
    (folder / name).chmod(0o755)
  (folder / "queue").write_text("")
  monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
  monkeypatch.setenv("PYTHONPATH", "")
  return folder


def fail(point, directory):
  """Records that a point has failed, which is a result."""
  (directory / point.name).mkdir(parents=True, exist_ok=True)
  wd.write_json(directory / point.name, wd.FAILED, {"error": "loss is nan"})


def test_a_launch_starts_a_task_for_each_point_that_has_none(tmp_path, slurm, capsys):
  directory, listed = tmp_path / "runs", points()
  launcher = launch.Launcher("slurm", "gres='gpu:a,b',cpus-per-task=3,exclusive", str(directory))
  fail(listed[0], directory)
  (slurm / "queue").write_text("9_0\n")
  launcher.submit(listed, 2, "top1")
  lines = (slurm / "submitted").read_text().splitlines()
  options = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in lines)
  assert options["array"] == "0-1%2" and options["cpus-per-task"] == "3"
  assert {"exclusive", "requeue"} <= options.keys() and options["time"] == "1:00:00"
  assert f"--name={options['job-name']}" in (slurm / "asked").read_text()
  assert launch.Launcher("slurm", "", f"{directory}/").cores == "1" and launcher.cores == "3"
  assert "started 2 tasks, job 17 of Slurm" in capsys.readouterr().out
  (slurm / "queue").write_text("9_0\n17_0\n17_1\n")
  launcher.submit(listed, 2, "top1")
  assert "no task is missing: 3 points are not done, and 3 tasks train" in capsys.readouterr().out
  (slurm / "queue").unlink()  # squeue fails, so the tasks of an earlier launch are not known
  launch.Launcher("slurm", "", str(directory)).submit(listed, 2, "top1")
  assert "started 3 tasks" in capsys.readouterr().out


def test_a_job_that_slurm_refuses_ends_with_its_message(tmp_path, slurm):
  launcher = launch.Launcher("slurm", "partition=gpu", str(tmp_path))
  with pytest.raises(ConfigError, match="slurm: sbatch: error: invalid partition specified: gpu"):
    launcher.submit(points(), None, "top1")


def test_a_machine_that_cannot_launch_says_so_before_anything_starts(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(ConfigError, match="no Slurm here"):
    launch.Launcher("slurm", "", "w")
  with pytest.raises(ConfigError, match="tasks need a directory"):
    launch.Launcher("local", "", "gs://bucket/w")
  monkeypatch.setitem(sys.modules, "submitit", None)
  with pytest.raises(MissingExtraError, match=r"\[slurm\]"):
    launch.Launcher("local", "", "w")


@pytest.mark.parametrize(
  ("numbers", "is_requeued"),
  [
    ([signal.SIGUSR2], True),
    ([signal.SIGTERM], False),
    ([signal.SIGTERM, signal.SIGUSR2], True),
  ],
)
def test_a_signal_saves_before_submitit_gives_the_task_back(monkeypatch, numbers, is_requeued):
  """Both programs handle SIGUSR2: submitit before and after the training, vitx during it."""
  order = []

  def train(_):
    with StopRequest(clock=lambda: 0.0) as request:
      for number in numbers:
        signal.raise_signal(number)
      order.append(("saved", request.received))
    return EXIT_INTERRUPTED

  handlers = {number: signal.getsignal(number) for number in numbers}
  monkeypatch.setattr(launch, "main", train)
  monkeypatch.setattr("vitx.runtime.signals._received", [])
  monkeypatch.setenv(WORKER, "of another sweep")
  monkeypatch.setenv(launch.GPUS, "0")
  handler = signal.signal(signal.SIGUSR2, lambda number, _: order.append(("requeued", number)))
  task = launch.SweepTask({WORKER: "top1", launch.GPUS: None})
  try:
    with pytest.raises(SystemExit) as end:
      task()
  finally:
    for number, before in {signal.SIGUSR2: handler, **handlers}.items():
      signal.signal(number, before)
  assert end.value.code == EXIT_INTERRUPTED and os.environ[WORKER] == "top1"
  assert launch.GPUS not in os.environ
  requeued = [("requeued", signal.SIGUSR2)] if is_requeued else []
  assert order == [("saved", numbers[0]), *requeued]
  assert isinstance(task.checkpoint(), DelayedSubmission)


def test_a_task_of_one_point_leaves_the_others_alone(tmp_path, quick):
  listed, show = points(), Silent()
  with lock.hold(wd_of(tmp_path, listed[0]), lock.POINT):
    assert train_points(listed, tmp_path, show, only_one=True)
    assert quick == [listed[1].name]
    assert show.states == [(listed[0].name, State.BUSY), (listed[1].name, State.DONE)]
    for _ in range(3):
      assert train_points(listed, tmp_path, show, only_one=True)
  assert quick == [point.name for point in listed[1:]]


def wd_of(directory, point):
  """Returns the workdir of a point, which exists afterwards."""
  workdir = directory / point.name
  workdir.mkdir(parents=True, exist_ok=True)
  return workdir


class Tasks:
  """A launcher whose tasks have ended at a certain look."""

  def __init__(self, looks):
    self.looks = looks

  def has_tasks(self):
    self.looks -= 1
    return self.looks >= 0


def test_points_of_tasks_are_shown_until_all_are_done(tmp_path, monkeypatch, capsys):
  listed = points(seeds=1)
  rows = [{"kind": "validation", "step": 4, "top1": 0.5}, {"kind": "train", "step": 6, "loss": 1.0}]
  texts = ["", json.dumps(rows[0]) + "\n", json.dumps(rows[1]) + "\n"]

  def progress(_):
    if texts:
      with open(wd_of(tmp_path, listed[0]) / "metrics.jsonl", "a") as file:
        file.write(texts.pop(0))
      (tmp_path / listed[0].name / lock.POINT).touch()
      return
    for point in listed:
      fail(point, tmp_path)

  monkeypatch.setattr(launch.time, "sleep", progress)
  launch.follow(listed, str(tmp_path), Live(listed, tmp_path, "top1"), Tasks(9))
  assert capsys.readouterr().out.splitlines() == [
    "[0/2] softmax_seed-0: another process trains it",
    "[0/2] softmax_seed-0: validation top-1 % 50.00 at step 4",
    "[1/2] softmax_seed-0: failed: loss is nan",
    "[2/2] fnet_seed-0: failed: loss is nan",
  ]


def test_the_table_shows_points_that_wait_and_that_others_train(tmp_path):
  listed = points()
  live = Live(listed, tmp_path, "top1")
  fail(listed[1], tmp_path)
  live.update(listed[1], State.DONE)
  of_a_phase = {"kind": "validation", "step": 2, "alignment_error": 0.5}
  live.show_rows(listed[0], [{"kind": "validation", "step": 4, "top1": 0.5}, of_a_phase])
  *table, end = live.table().splitlines()
  lines = [line.split() for line in table]
  assert end == "1 of 4 points" and lines[0] == [
    "done",
    "waiting",
    "busy",
    "failed",
    "test",
    "top-1",
    "%",
  ]
  assert lines[1:3] == [["softmax", "0/2", "1", "1"], ["fnet", "0/2", "1", "1"]]
  shown = "softmax_seed-0 step 2 validation top-1 % 50.00 at step 4"
  assert lines[3] == shown.split()


def test_points_without_a_task_are_named_with_the_log_of_the_failure(tmp_path, monkeypatch):
  listed = points(seeds=1)
  fail(listed[0], tmp_path)
  monkeypatch.setattr(launch.time, "sleep", lambda _: None)
  follow = lambda: launch.follow(  # noqa: E731
    listed, str(tmp_path), Live(listed, tmp_path, "top1"), Tasks(1)
  )
  begin = "1 points are not done and have no task: fnet_seed-0. "
  with pytest.raises(ConfigError, match=f"^{begin}No task that failed has written a log"):
    follow()
  (tmp_path / launch.LOGS).mkdir()
  (tmp_path / launch.LOGS / "17_0_0_log.out").write_text("ConfigError: bad\n\n")
  (tmp_path / launch.LOGS / "17_1_0_log.out").write_text("Exiting after successful completion\n")
  with pytest.raises(ConfigError, match=r"17_0_0_log.out ends with 'ConfigError: bad'"):
    follow()


@pytest.mark.slow  # four processes, each with an import and compilations
@pytest.mark.usefixtures("uncleared", "shared_programs")
def test_tasks_in_the_background_give_the_bits_of_one_process(tmp_path, monkeypatch):
  """The launcher has ended when another process waits for its two tasks."""
  assert main(command(tmp_path / "alone", tmp_path / "out")) == 0
  workdir = tmp_path / "sweep"
  launched = start(workdir, tmp_path / "own", "--launch=local", "--parallel=2")
  assert "started 2 tasks, here" in runs.finish(launched)
  waiting = start(workdir, tmp_path / "own", "--wait")
  lines = runs.finish(waiting).splitlines()
  assert sum("test top-1 %" in line for line in lines) == 3  # of two points, and of the table
  assert results(tmp_path / "own") == results(tmp_path / "out")
  assert ONLY_ONE not in os.environ
