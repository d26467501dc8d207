"""A run in progress: its experiment together with its lock, checkpoints and metrics."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.store import CheckpointStore
from vitx.runtime.signals import StopRequest
from vitx.training.distributed import end_on_failure, is_writer
from vitx.training.experiment import Experiment
from vitx.training.record.console import keep_log
from vitx.training.record.recorder import Recorder
from vitx.training.restore import Beginning, begin


@dataclasses.dataclass(frozen=True)
class Run:
  """The objects of a run in progress in its workdir.

  Attributes:
    experiment: The experiment that the run trains.
    workdir: The directory that the run writes to.
    lock: The run's lock on the workdir.
    request: The handler of signals that ask the run to end early.
    store: The run's checkpoints.
    recorder: The recorder of metrics and console lines.
    start: The state from which the run begins or continues.
  """

  experiment: Experiment
  workdir: str
  lock: lock.Lock
  request: StopRequest
  store: CheckpointStore
  recorder: Recorder
  start: Beginning

  def save(self, step: int, state: Any) -> None:
    """Saves a state, which is on the devices, as the checkpoint of a step."""
    self.lock.check()
    record = self.recorder.record
    bests = (record.best_step, record.go_on().best_step)
    stay = [best for best in bests if best is not None]
    state = self.experiment.unreplicate(state)
    self.store.save(step, state, self.recorder.snapshot(), stay=stay)

  def last_good(self) -> int | None:
    """Returns the step of the newest checkpoint, or None; waits for a save in progress first."""
    self.store.wait()
    return self.store.latest()


@contextlib.contextmanager
def open_run(experiment: Experiment, workdir: str, request: StopRequest) -> Iterator[Run]:
  """Locks a workdir and opens a run in it, from the saved state or from a new one.

  Args:
    experiment: The experiment that the run trains.
    workdir: An existing directory or URL.
    request: The handler of signals that ask the run to end early.

  Yields:
    The run.

  Raises:
    WorkdirInUseError: Another training holds the workdir.
    Interrupted: A signal came before the run had begun.
  """

  def initialize() -> Callable[[], Any]:
    with request.breakable():
      return experiment.start_init()

  keep = experiment.settings.checkpoint.keep
  with (
    lock.hold(workdir, waits=True, ends=lambda: request.received is not None) as own_lock,
    keep_log(workdir, write=is_writer()),
    CheckpointStore(wd.locate_checkpoints(workdir), keep=keep) as store,
  ):
    start = begin(experiment, workdir, store, initialize)
    recorder = Recorder(
      experiment, workdir, start.record, start=start.step, write=is_writer(), guard=own_lock.check
    )
    with contextlib.closing(recorder), end_on_failure():
      yield Run(experiment, workdir, own_lock, request, store, recorder, start)
