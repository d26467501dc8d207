"""Many runs, one after the other, each in an ordinary workdir of its own.

Several processes, or machines that see the same directory, may work through the same points:
whoever holds a point's lock trains it, the others go on to the next. What is finished is skipped,
what was stopped or killed goes on.
"""

import dataclasses
import enum
import gc
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import jax
from etils import epath
from ml_collections import ConfigDict

from vitx.analysis.comparison import Outcome
from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.directory import Directory
from vitx.checkpoints.reading import read_record
from vitx.errors import ConfigError
from vitx.training import phases, provenance
from vitx.training.failures import NonFiniteError
from vitx.training.log import read_metrics

POINT = "point.json"  # which point of a sweep a workdir is
FAILED = "failed.json"  # why it ended without a result
POLL = 2.0  # seconds between two looks at what other processes train


@dataclasses.dataclass(frozen=True)
class Point:
  """One run of a sweep.

  Attributes:
    name: of its workdir in the sweep's directory.
    method: what it shares with the points that differ from it only in their seed.
    seed: of the run.
    config: of `get_config`, not resolved.
  """

  name: str
  method: str
  seed: int
  config: ConfigDict


class State(enum.Enum):
  """How a point stands after it was looked at."""

  DONE = "done"  # finished or failed, here or elsewhere
  BUSY = "busy"  # another process trains it
  STOPPED = "stopped"  # a signal ended it


class Show(Protocol):
  """What a sweep tells of itself."""

  def training(self, point: Point) -> AbstractContextManager:
    """Surrounds the training of a point."""
    ...

  def looked_at(self, point: Point, state: State) -> None:
    """Is told how a point stands."""
    ...


def train_points(
  points: Sequence[Point], directory: str | Path, show: Show, *, trust_code: bool = False
) -> bool:
  """Trains what is neither finished nor failed, and waits for what other processes train.

  A point whose loss is not finite has failed; it is recorded and not tried again.

  Args:
    points: in their order.
    directory: that holds their workdirs; created if absent.
    show: of the progress.
    trust_code: whether code that the config of `init_from`, or of a teacher, names may be imported.

  Returns:
    False if a signal ended it; the same call goes on.

  Raises:
    ConfigError: a workdir belongs to another run.
    OutOfMemoryError, CheckpointError: as of one run.
  """
  pending = list(points)
  while pending:
    busy = []
    for point in pending:
      state = _train_point(point, wd.join(directory, point.name), show, trust_code)
      show.looked_at(point, state)
      if state is State.STOPPED:
        return False
      if state is State.BUSY:
        busy.append(point)
    if len(busy) == len(pending):
      time.sleep(POLL)
    pending = busy
  return True


def _train_point(point: Point, workdir: str, show: Show, trust_code: bool) -> State:
  asked = {"method": point.method, "seed": point.seed, "config": wd.to_plain(point.config)}
  _check_same_point(workdir, asked)
  if is_done(workdir):
    return State.DONE
  wd.check_writable(workdir)
  try:
    with lock.hold(workdir, lock.POINT):
      if is_done(workdir):  # meanwhile
        return State.DONE
      wd.write_json(workdir, POINT, asked)
      try:
        with show.training(point):
          result = phases.train(point.config, workdir, trust_code=trust_code)
      except NonFiniteError as error:
        wd.write_json(workdir, FAILED, {"error": str(error)})
        return State.DONE
      finally:
        # Programs of runs that are over hold memory, and maps of which a process may have few.
        jax.clear_caches()
        gc.collect()
  except lock.WorkdirInUseError:
    return State.BUSY
  return State.DONE if result.finished else State.STOPPED


def _check_same_point(workdir: str, asked: dict[str, Any]) -> None:
  stored = wd.read_json(workdir, POINT)
  if stored:
    provenance.check_same_fields(workdir, stored["config"], asked["config"], provenance.FREE)
  elif (epath.Path(workdir) / "config.json").exists():
    raise ConfigError(
      f"workdir={workdir!r} is a run of its own, not a point of a sweep; move it away or choose"
      " another --workdir"
    )


def is_done(workdir: str) -> bool:
  """Returns whether a point has its test figures, or has failed."""
  return bool(wd.read_json(workdir, FAILED)) or _test_row(workdir) is not None


def read_outcome(point: Point, directory: str | Path) -> Outcome | None:
  """Returns how a point ended; None if it has not."""
  workdir = wd.join(directory, point.name)
  failed, test = wd.read_json(workdir, FAILED), _test_row(workdir)
  if failed:
    return Outcome(point.method, point.seed, problem=failed["error"])
  if test is None:
    return None
  best = test["step"]
  rows = [row for row in read_metrics(workdir) if row["kind"] == "validation"]
  validation = [row for row in rows if row["step"] == best][-1]
  return Outcome(point.method, point.seed, best, validation, test, _read_seconds(workdir))


def _test_row(workdir: str) -> dict[str, Any] | None:
  """Returns the figures of the last run's best checkpoint on *test*; None before the end."""
  names = wd.read_json(workdir, wd.PHASES).get("phases", ())
  if names and wd.find_run(workdir) != wd.join(workdir, names[-1]):
    return None
  return next((row for row in read_metrics(workdir) if row["kind"] == "test"), None)


def _read_seconds(workdir: str) -> float:
  """Returns how long a point trained, over all its phases and attempts, compilation apart."""
  names = wd.read_json(workdir, wd.PHASES).get("phases", ())
  seconds = 0.0
  for run in [wd.join(workdir, name) for name in names] or [workdir]:
    directory = Directory(wd.locate_checkpoints(run))
    newest = directory / directory.steps()[-1]
    seconds += read_record(newest, str(newest))["record"]["seconds"]
  return seconds
