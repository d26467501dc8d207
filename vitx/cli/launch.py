"""Trains a sweep by tasks of Slurm, or by processes in the background, which submitit starts.

A task runs the sweep's own command as a worker. On Slurm it trains one point, the first that is
neither done nor in training. The sweep's directory and its locks decide which, so the process that
launched the tasks may end, several may launch tasks of one sweep, and a launch after a failure
replaces the tasks that are missing.

SIGTERM saves and ends a task. SIGUSR2, which Slurm sends before a time limit, saves it and gives it
back to Slurm's queue.
"""

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitx.checkpoints import workdir as wd
from vitx.cli.live import Live
from vitx.cli.main import main
from vitx.config.errors import ConfigError, importing
from vitx.config.overrides import split
from vitx.sweeps.points import Point
from vitx.sweeps.workers import ONLY_ONE, make_environment

LOGS = "tasks"  # the folder of the tasks' logs in the sweep's directory
REQUEUES = 1000  # the number of times that submitit gives a task back to Slurm's queue
# A task without a time limit of the user's has this one, after which it goes on in another turn.
SETTINGS = {"time": "1:00:00", "requeue": True, "cpus_per_task": "1"}
LOOK = 10.0  # seconds between two questions to Slurm
POLL = 2.0  # seconds between two looks at the points
GPUS = "CUDA_VISIBLE_DEVICES"


class SweepTask:
  """A task of submitit, which runs this process's command as a worker of the sweep."""

  def __init__(self, environment: dict[str, str | None]):
    """Stores the command and the variables of its environment; None removes a variable."""
    self._arguments, self._environment = sys.argv[1:], environment

  def __call__(self) -> None:
    """Trains; after SIGUSR2, lets submitit give the task back to the queue."""
    for name, value in self._environment.items():
      os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    requeue: Any = signal.getsignal(signal.SIGUSR2)  # submitit's, which a training replaces
    status = main(self._arguments)
    from vitx.runtime import signals  # now that the sweep has set JAX's variables

    if status == signals.EXIT_INTERRUPTED and signals.has_received(signal.SIGUSR2):
      requeue(signal.SIGUSR2, None)
    if status:
      sys.exit(status)

  def checkpoint(self) -> Any:
    """Returns the task for submitit to start again."""
    from submitit.helpers import DelayedSubmission

    return DelayedSubmission(self)


class Launcher:
  """Starts the tasks of a sweep, and shows the sweep until they have ended."""

  def __init__(self, kind: str, slurm: str, directory: str):
    """Checks that tasks can be started.

    Args:
      kind: "slurm" for a job of Slurm; "local" for processes in the background of this machine.
      slurm: Options of sbatch, as `name=value,name=value`, which only Slurm checks.
      directory: The directory of the points' workdirs.

    Raises:
      MissingExtraError: submitit is not installed.
      ConfigError: Slurm is not installed, or the directory is not one in which tasks can log.
    """
    with importing(f"--launch {kind}", "slurm"):
      import submitit
    if kind == "slurm" and shutil.which("srun") is None:
      raise ConfigError("no Slurm here (srun is not on the path).")
    if "://" in directory:
      raise ConfigError(f"workdir={directory!r}: tasks need a directory for their logs.")
    self._submitit: Any = submitit
    self._is_slurm, self._directory = kind == "slurm", directory
    self._settings = SETTINGS | {"job_name": _name_job(directory)} | _parse(slurm)
    self._jobs: list[Any] = []
    self._looked, self._ids = -LOOK, [""]

  @property
  def cores(self) -> str | None:
    """Returns the number of cores of a task; None for those of this machine."""
    return str(self._settings["cpus_per_task"]) if self._is_slurm else None

  def submit(self, points: Sequence[Point], count: int | None, figure: str) -> None:
    """Starts the tasks that are missing, and prints how to follow them.

    Args:
      points: The points of the sweep.
      count: The most tasks that train at once; by default one, or on Slurm one for each point.
      figure: The metric on *test* that the sweep shows, such as "top1".

    Raises:
      ConfigError: Slurm refuses the job.
    """
    from vitx.sweeps.sweep import is_done

    rest = sum(not is_done(wd.join(self._directory, point.name)) for point in points)
    queued = len([*filter(None, self._list_tasks())]) if self._is_slurm else 0
    missing = max(rest - queued, 0) if self._is_slurm else min(rest, count or 1)
    if missing:
      self._start(missing, count or missing, figure)
      job = f"job {self._jobs[0].job_id.partition('_')[0]} of Slurm" if self._is_slurm else "here"
      print(f"started {missing} tasks, {job}; logs in {wd.join(self._directory, LOGS)}")
    else:
      print(f"no task is missing: {rest} points are not done, and {queued} tasks train or wait")
    arguments = [argument for argument in sys.argv[1:] if argument != "--wait"]
    print(f"progress: {shlex.join(['vitx', *arguments, '--wait'])}", flush=True)

  def _start(self, missing: int, count: int, figure: str) -> None:
    folder = Path(self._directory, LOGS).absolute()
    environment: dict[str, str | None] = {
      **make_environment(1 if self._is_slurm else count, figure)
    }
    os.environ["PYTHONPATH"] = environment["PYTHONPATH"] or ""  # where a task finds this file
    if self._is_slurm:
      executor = self._submitit.SlurmExecutor(folder, max_num_timeout=REQUEUES)
      executor.update_parameters(array_parallelism=count, additional_parameters=self._settings)
      environment |= {ONLY_ONE: "1"}
    else:
      executor = self._submitit.LocalExecutor(folder, max_num_timeout=REQUEUES)
      executor.update_parameters(timeout_min=365 * 24 * 60)
      environment |= {GPUS: os.environ.get(GPUS)}  # submitit's own value hides all
    executor.update_parameters(stderr_to_stdout=True)
    try:
      self._jobs = executor.submit_array([SweepTask(environment)] * missing)
    except self._submitit.core.utils.FailedJobError as error:
      raise ConfigError(f"slurm: {' '.join(str(error).split())}") from error

  def has_tasks(self) -> bool:
    """Returns whether a task of this sweep trains or waits; asks Slurm every ten seconds."""
    if not self._is_slurm:
      return any(not job.done() for job in self._jobs)
    if time.monotonic() - self._looked > LOOK:
      self._ids, self._looked = self._list_tasks(), time.monotonic()
    return bool(self._ids)

  def _list_tasks(self) -> list[str]:
    """Returns the numbers of this sweep's tasks that train or wait."""
    name = f"--name={self._settings['job_name']}"
    command = ["squeue", "--noheader", "--array", "--format=%i", name]
    listed = subprocess.run(command, capture_output=True, text=True)
    # Slurm's controller may be busy for a moment. Then the tasks are the same as before.
    return self._ids if listed.returncode else listed.stdout.split()


def follow(
  points: Sequence[Point], directory: str, live: Live, launcher: Launcher | None = None
) -> None:
  """Shows the points of a sweep until all are done.

  Args:
    points: The points of the sweep.
    directory: The directory of the points' workdirs.
    live: The display.
    launcher: The launcher of the tasks; None if the tasks were launched elsewhere.

  Raises:
    ConfigError: No task of the launcher is left, and not all points are done.
  """
  from vitx.checkpoints import lock
  from vitx.checkpoints.metrics import read_metrics
  from vitx.sweeps.sweep import State, is_done

  rest = list(points)
  while True:
    is_last = launcher is not None and not launcher.has_tasks()  # before the look at the points
    for point in rest[:]:
      workdir = wd.join(directory, point.name)
      if is_done(workdir):
        live.update(point, State.DONE)
        rest.remove(point)
      elif Path(workdir, lock.POINT).exists():
        live.show_rows(point, read_metrics(workdir))
    if not rest:
      return
    if is_last:
      names = ", ".join(point.name for point in rest)
      raise ConfigError(
        f"{len(rest)} points are not done and have no task: {names}. {_find_failure(directory)} The"
        " same command starts the tasks that are missing."
      )
    time.sleep(POLL)


def _find_failure(directory: str) -> str:
  """Returns the last line of the latest log of a task that failed, and the file's name."""
  logs = sorted(Path(directory, LOGS).glob("*.out"), key=lambda path: path.stat().st_mtime)
  for path in reversed(logs):
    lines = path.read_text(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    if "successful completion" not in last:
      return f"{path} ends with {last!r}."
  return f"No task that failed has written a log; do all machines see {directory}?"


def _parse(slurm: str) -> dict[str, Any]:
  """Returns options of sbatch by their names; one without a value is True."""
  items = (item.partition("=") for item in split(slurm) if item)
  return {
    name.strip().replace("-", "_"): value if equals else True for name, equals, value in items
  }


def _name_job(directory: str) -> str:
  """Returns a job's name by which all launches of a sweep find its tasks."""
  digest = hashlib.sha256(os.path.realpath(directory).encode()).hexdigest()[:8]
  return f"vitx-{Path(directory).name}-{digest}"
