"""A run under way, opened in its workdir."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.store import CheckpointStore
from vitx.training.distributed import ending, is_writer
from vitx.training.experiment import Experiment
from vitx.training.failures import StopRequest
from vitx.training.record.console import keep_log
from vitx.training.record.progress import SOON, announce
from vitx.training.record.recorder import Recorder
from vitx.training.record.tracking import open_tracking
from vitx.training.restore import Beginning, begin


@dataclasses.dataclass(frozen=True)
class Run:
  """A run in its workdir.

  Attributes:
    experiment: what the run trains.
    workdir: where the run writes.
    lock: its lock on the workdir.
    request: a request to end before time.
    store: its checkpoints.
    recorder: its console and metrics.
    start: the state that it begins or goes on with.
  """

  experiment: Experiment
  workdir: str
  lock: lock.Lock
  request: StopRequest
  store: CheckpointStore
  recorder: Recorder
  start: Beginning

  def save(self, step: int, state: Any) -> None:
    """Saves a state of the devices as the checkpoint of a step."""
    self.lock.check()
    record = self.recorder.record
    bests = (record.best_step, record.go_on().best_step)
    stay = [best for best in bests if best is not None]
    state = self.experiment.unreplicate(state)
    self.store.save(step, state, self.recorder.snapshot(), stay=stay)

  def last_good(self) -> int | None:
    """Returns the step of the newest checkpoint, the one being written included."""
    self.store.wait()
    return self.store.latest()


@contextlib.contextmanager
def open_run(experiment: Experiment, workdir: str, request: StopRequest) -> Iterator[Run]:
  """Opens a run in a workdir that it locks, from what is saved there or anew.

  Args:
    experiment: what the run trains.
    workdir: an existing directory or URL.
    request: a request to end before time.

  Yields:
    The run.

  Raises:
    WorkdirInUseError: another training holds the workdir.
    Interrupted: a signal came before the run had begun.
  """
  config = experiment.config

  def initialize() -> Any:
    with request.breakable():
      return announce("initializing", lambda: experiment.init_state(request.run), patience=SOON)

  with (
    lock.hold(workdir) as own_lock,
    keep_log(workdir, write=is_writer()),
    CheckpointStore(wd.locate_checkpoints(workdir), keep=config.checkpoint.keep) as store,
  ):
    start = begin(experiment, workdir, store, initialize)
    recorder = Recorder(
      experiment,
      workdir,
      start.record,
      start=start.step,
      write=is_writer(),
      track=functools.partial(open_tracking, config, workdir),
      guard=own_lock.check,
    )
    with contextlib.closing(recorder), ending():
      yield Run(experiment, workdir, own_lock, request, store, recorder, start)
