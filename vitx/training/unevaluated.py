"""The state of a run whose evaluation a signal broke off.

A checkpoint holds the state after its step's evaluation. An unevaluated state is saved apart from
the checkpoints, where nothing looks for a model, and is evaluated first when the run continues.
"""

from pathlib import Path
from typing import Any

from absl import logging

from vitx.checkpoints.directory import Directory
from vitx.checkpoints.errors import CorruptCheckpoint
from vitx.checkpoints.store import Checkpoint, CheckpointStore
from vitx.checkpoints.workdir import join, locate_checkpoints
from vitx.training.distributed import is_writer

NAME = "unevaluated"  # its directory, beside those of the checkpoints


def save(workdir: str | Path, step: int, state: Any, record: dict[str, Any]) -> None:
  """Saves a state, unless it is saved already.

  Args:
    workdir: The workdir of the run.
    step: The step of the state, later than every checkpoint.
    state: The state on the host, see `CheckpointStore.save`.
    record: The record of the run, as JSON.
  """
  if step in _directory(workdir).steps():
    return
  remove(workdir)
  with CheckpointStore(str(_directory(workdir))) as store:
    store.save(step, state, record)


def restore(workdir: str | Path, after: int, target: Any) -> Checkpoint | None:
  """Returns the saved state if it is good and later than the step `after`, else None."""
  if max(_directory(workdir).steps(), default=-1) <= after:
    return None
  try:
    with CheckpointStore(str(_directory(workdir)), read_only=True) as store:
      return store.restore_latest(target)
  except CorruptCheckpoint as error:
    logging.warning("skipping a state that was not evaluated: %s", error)
    return None


def find_step(workdir: str | Path) -> int:
  """Returns the last step that is saved in a workdir, evaluated or not; 0 if there is none."""
  return max(list_steps(workdir), default=0)


def list_steps(workdir: str | Path) -> list[int]:
  """Returns the steps whose state is saved in a workdir, evaluated or not."""
  return [*Directory(locate_checkpoints(workdir)).steps(), *_directory(workdir).steps()]


def remove(workdir: str | Path) -> None:
  """Removes the saved state, when it is no longer needed."""
  if is_writer():
    _directory(workdir).remove()


def _directory(workdir: str | Path) -> Directory:
  return Directory(join(locate_checkpoints(workdir), NAME))
