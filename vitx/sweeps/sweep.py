"""Trains many runs, each in its own workdir.

Several processes, on one machine or on machines that share a directory, may train the runs
together. A process locks the run that it trains, and the other processes train other runs.
Finished runs are skipped; runs that were stopped or killed continue.
"""

import contextlib
import enum
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from etils import epath

from vitx.analysis.comparison import Outcome
from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.metrics import read_metrics, read_test_row
from vitx.config.errors import ConfigError
from vitx.data import sources
from vitx.runtime import sharing
from vitx.runtime.signals import count_received
from vitx.sweeps.points import Point
from vitx.training import phases
from vitx.training.failures import NonFiniteError, PrunedError
from vitx.training.record import provenance
from vitx.training.validation import SEEN

# Fields that may differ when a sweep continues. Those that decide the end of a run may not, since a
# finished point is not trained again.
FREE = frozenset(provenance.FREE) - {"stop_after", "evaluation.stop_early"}
POLL = 2.0  # seconds between two checks of the points that other processes train


class State(enum.Enum):
  """The state of a point after this process has tried to train it."""

  DONE = "done"  # finished or failed, in this process or another
  BUSY = "busy"  # another process trains it
  STOPPED = "stopped"  # a signal ended it


class Show(Protocol):
  """The protocol of an object that shows the progress of a sweep."""

  def training(self, point: Point) -> AbstractContextManager:
    """Returns a context manager that shows a point as training while the `with` block runs."""
    ...

  def update(self, point: Point, state: State) -> None:
    """Shows the state of a point after this process has tried to train it."""
    ...


@sources.sharing()
@sharing.sharing()
def train_points(
  points: Sequence[Point], directory: str | Path, show: Show, *, only_one: bool = False
) -> bool:
  """Trains all points that are not done, and waits for points that other processes train.

  A point whose loss is not finite, or which a search prunes, has failed; the failure is recorded
  and the point is not tried again. The config of a teacher, or of the run in `init_from`, may name
  Python code, which is imported only as `registry.trusting` allows.

  Args:
    points: The points, in the order in which they are trained.
    directory: The directory that holds the points' workdirs; created if absent.
    show: The object that shows the progress.
    only_one: Whether to train only the first point that is free, and to wait for no other process.

  Returns:
    True if all points are done, or with `only_one` if one is, or none is free; False if a signal
    ended the sweep, which another call continues.

  Raises:
    ConfigError: A workdir belongs to another run, or a point would end before its last phase.
    OutOfMemoryError, CheckpointError: A run failed, see `loop.train`.
  """
  for point in points:
    if point.config.get("phases") and point.config.get("stop_after"):
      raise ConfigError(
        "stop_after would end a run of phases in its first phase, where a point of a sweep has no"
        " result; set phases.NAME.stop_after."
      )
  before = count_received()
  while points:
    busy: list[Point] = []
    for point in points:
      state, is_claimed = _train_point(point, directory, show)
      if state is State.STOPPED:
        return False
      if only_one and is_claimed and state is State.DONE:
        return True
      if state is State.BUSY:
        busy.append(point)
      is_rest = busy or point is not points[-1]
      if is_rest and count_received() > before:  # a signal came as the point ended
        return False
    if only_one:
      return True
    if len(busy) == len(points):
      time.sleep(POLL)
    points = busy
  return True


def _train_point(point: Point, directory: str | Path, show: Show) -> tuple[State, bool]:
  """Trains a point that is free; returns its state, and whether this process held its lock."""
  workdir = wd.join(directory, point.name)
  with contextlib.ExitStack() as locks:
    claim = _claim(point, workdir, locks)
    state = claim
    if state is None:
      with show.training(point):
        state = _train(point, workdir)
  show.update(point, state)
  return state, claim is None


def _claim(point: Point, workdir: str, locks: contextlib.ExitStack) -> State | None:
  """Locks a point for training (returns None), unless it is done or another process trains it."""
  content = {"method": point.method, "seed": point.seed, "config": wd.to_plain(point.config)}
  _check_same_point(workdir, content)
  if is_done(workdir):
    return State.DONE
  wd.check_writable(workdir, in_phases=bool(point.config.get("phases")))
  try:
    locks.enter_context(lock.hold(workdir, lock.POINT))
  except lock.WorkdirInUseError:
    return State.BUSY
  if is_done(workdir):  # another process finished it meanwhile
    return State.DONE
  wd.write_json(workdir, wd.POINT, content)
  return None


def _train(point: Point, workdir: str) -> State:
  """Trains a point and returns its state; records a failure that is a result."""
  try:
    result = phases.train(point.config, workdir)
  except lock.WorkdirInUseError:
    return State.BUSY
  except (NonFiniteError, PrunedError) as error:
    wd.write_json(workdir, wd.FAILED, {"error": str(error)})
    return State.DONE
  return State.DONE if result.finished else State.STOPPED


def _check_same_point(workdir: str, content: dict[str, Any]) -> None:
  stored = wd.read_json(workdir, wd.POINT)
  if stored:
    provenance.check_same_fields(workdir, stored["config"], content["config"], FREE)
  elif (epath.Path(workdir) / "config.json").exists():
    raise ConfigError(f"workdir={workdir!r} is a run of its own, not a point; choose another.")


def is_done(workdir: str) -> bool:
  """Returns whether a point has its metrics on *test*, or has failed."""
  return bool(wd.read_json(workdir, wd.FAILED)) or read_test_row(workdir) is not None


def read_outcome(point: Point, directory: str | Path) -> Outcome | None:
  """Reads the outcome of a point from its workdir; None if its run has not ended."""
  workdir = wd.join(directory, point.name)
  failed, test = wd.read_json(workdir, wd.FAILED), read_test_row(workdir)
  if failed:
    return Outcome(point.method, point.seed, problem=failed["error"], fold=point.fold)
  if test is None:
    return None
  best = test["step"]
  rows = read_metrics(workdir)
  best_rows = [row for row in rows if row["kind"] == "validation" and row["step"] == best]
  test_curve = tuple(row for row in rows if row["kind"] == SEEN)
  figures = (best_rows[-1], test, test_curve, _read_seconds(workdir))
  return Outcome(point.method, point.seed, best, *figures, fold=point.fold)


def _read_seconds(workdir: str) -> float:
  """Returns the seconds that all phases and attempts of a point took, without compiling."""
  names = wd.read_phases(workdir)
  seconds = 0.0
  for run in [wd.join(workdir, name) for name in names] or [workdir]:
    times = [row["time"]["seconds"] for row in read_metrics(run) if "time" in row]
    seconds += max(times, default=0.0)
  return seconds
