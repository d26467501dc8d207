"""Sends the rows of a run's metrics to a tracker, in a thread beside the training."""

import importlib.util
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from vitx.checkpoints import workdir as wd
from vitx.checkpoints.metrics import MetricsLog, read_metrics
from vitx.config import registry
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.config.fields import RunSettings
from vitx.training.distributed import is_writer
from vitx.training.failures import TrackingError
from vitx.training.record.trackers import TRACKERS, TrackedRun, Tracker

Key = tuple[str, int]  # kind and step, which identify a row


def check(settings: RunSettings, *, is_trial: bool = False) -> None:
  """Checks that the tracker of a run can work on this machine.

  Args:
    settings: The settings of a run.
    is_trial: Whether nothing will be tracked; packages may then be missing.

  Raises:
    MissingExtraError: The tracker needs a package that is not installed.
  """
  kind: Any = _make(settings).func
  for package in kind.packages:
    if not is_trial and not _is_installed(package):
      raise MissingExtraError(f"tracking={settings.tracking.name}", kind.extra)
  problem = "" if is_trial or not is_writer() else kind.find_problem()
  if problem:
    raise ConfigError(f"tracking={settings.tracking.name!r}: {problem}")


def _make(settings: RunSettings) -> partial:
  """Returns a function that makes the tracker of a run from a `TrackedRun`."""
  return registry.build(TRACKERS, settings.tracking, "tracking", hidden=("run",))


def _is_installed(package: str) -> bool:
  spec = importlib.util.find_spec(package)
  # A folder of that name, such as the one that wandb makes, has no origin.
  return spec is not None and spec.origin is not None


def open_tracking(settings: RunSettings, workdir: str, log: MetricsLog) -> "Tracking | None":
  """Opens the tracker of a run; returns None if the run has no tracker.

  If the run had another tracker before, or never had one, the tracker first gets all rows that were
  logged so far.

  Args:
    settings: The settings of the run.
    workdir: The workdir of the run, in which a file stores the id of the run at the tracker.
    log: The run's log of metrics. The rows that are newer than the run's checkpoint were dropped
      from it.
  """
  make, stored = _make(settings), wd.read_json(workdir, wd.TRACKING)
  chosen = wd.to_plain(settings.tracking)
  if make.func is Tracker:
    if stored:  # a tracker that is chosen later lacks the rows from here on
      wd.write_json(workdir, wd.TRACKING, {"tracking": chosen})
    return None
  is_new = stored.get("tracking") != chosen
  known: set[Key] = set()
  if not is_new:
    known = {(kind, step) for kind, step in stored["known"]} | {_key(row) for row in log.dropped}
  id = secrets.token_hex(4) if is_new else stored["id"]
  wd.write_json(workdir, wd.TRACKING, {"tracking": chosen, "id": id, "known": sorted(known)})
  run = TrackedRun(workdir, id, wd.to_plain(settings))
  tracking = Tracking(settings.tracking.name, partial(make, run=run), known)
  for row in read_metrics(workdir) if is_new else ():
    tracking.write(row)
  return tracking


def _key(row: dict[str, Any]) -> Key:
  return row["kind"], row["step"]


class Tracking:
  """A sender of rows to a tracker; a thread makes the tracker and calls its methods."""

  def __init__(self, name: str, make: Callable[[], Tracker], known: Iterable[Key] = ()):
    """Starts the thread, which begins to make the tracker.

    Args:
      name: The name of the tracker, for errors.
      make: A function that makes the tracker.
      known: The pairs (kind, step) of the rows that the tracker already has. These rows are not
        sent again when a run that continues from an earlier checkpoint logs them a second time.
    """
    self._name, self._known = name, set(known)
    self._pool = ThreadPoolExecutor(max_workers=1)
    self._tracker: Future[Tracker] = self._pool.submit(make)
    self._last: Future = self._tracker  # the last call, which fails if a call before it did

  def write(self, row: dict[str, Any]) -> None:
    """Sends the numbers of a row of metrics, including its times.

    Raises:
      TrackingError: The tracker failed on an earlier row.
    """
    if _key(row) in self._known:
      return
    figures = {
      name: value
      for name, value in {**row, **row.get("time", {})}.items()
      if isinstance(value, int | float) and name != "step"
    }
    self._call(lambda tracker: tracker.write(row["kind"], row["step"], figures))

  def close(self) -> None:
    """Waits until the tracker has stored all rows.

    Raises:
      TrackingError: The tracker failed.
    """
    self._call(lambda tracker: tracker.close())
    self._check()
    self._pool.shutdown()

  def _call(self, function: Callable[[Tracker], None]) -> None:
    """Queues a call of the tracker for the thread; skips the call if an earlier one fails."""
    if self._last.done():
      self._check()
    before, tracker = self._last, self._tracker

    def work() -> None:
      before.result()
      function(tracker.result())

    self._last = self._pool.submit(work)

  def _check(self) -> None:
    """Waits for the last call; raises TrackingError if a call failed."""
    try:
      self._last.result()
    except Exception as error:
      raise TrackingError(
        f"tracking={self._name} failed: {str(error).rstrip('. ')}. The run is saved up to its last"
        " checkpoint. Repair the tracker, or continue the run with tracking=none."
      ) from error
