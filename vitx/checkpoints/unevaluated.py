"""Saves the state of a run when a signal interrupts the evaluation of that state.

A checkpoint is saved only after the evaluation at its step is complete. A state without its
evaluation is saved in a folder of its own beside the checkpoints. When the run continues, this
state is evaluated first.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from absl import logging

from vitx.checkpoints.directory import Directory
from vitx.checkpoints.errors import CorruptCheckpoint
from vitx.checkpoints.store import Checkpoint, CheckpointStore
from vitx.checkpoints.workdir import UNEVALUATED, join, locate_checkpoints


def save(workdir: str | Path, step: int, state: Any, record: dict[str, Any]) -> None:
  """Saves a state that was not evaluated, in place of an earlier one.

  If a state of this step is saved already, nothing is done.

  Args:
    workdir: The workdir of the run.
    step: The step of the state, later than every checkpoint.
    state: The state on the host, see `CheckpointStore.save`.
    record: The record of the run, as JSON.
  """
  directory = _directory(workdir)
  if step in directory.steps():
    return
  remove(workdir)
  with CheckpointStore(str(directory)) as store:
    store.save(step, state, record)


def restore(
  workdir: str | Path, after: int, target: Any = None, *, only: Iterable[str] | None = None
) -> Checkpoint | None:
  """Returns the state that was saved before its evaluation; None if it is damaged or absent.

  Args:
    workdir: The workdir of the run.
    after: The step of the newest checkpoint, -1 without one. If the state is not later, the result
      is None.
    target: A tree that the state must match, see `CheckpointStore.restore`.
    only: The top-level keys of the state to read, see `CheckpointStore.restore`.
  """
  directory = _directory(workdir)
  if max(directory.steps(), default=-1) <= after:
    return None
  try:
    with CheckpointStore(str(directory), read_only=True) as store:
      return store.restore_latest(target, only=only)
  except CorruptCheckpoint as error:
    logging.warning("skipping a state that was not evaluated: %s", error)
    return None


def find_step(workdir: str | Path) -> int:
  """Returns the last step whose state is saved in a workdir, evaluated or not; 0 for no state."""
  return max(list_steps(workdir), default=0)


def list_steps(workdir: str | Path) -> list[int]:
  """Returns the steps whose state is saved in a workdir, evaluated or not."""
  return [*Directory(locate_checkpoints(workdir)).steps(), *_directory(workdir).steps()]


def remove(workdir: str | Path) -> None:
  """Removes the saved state that was not evaluated; checkpoints stay."""
  if jax.process_index() == 0:
    _directory(workdir).remove()


def _directory(workdir: str | Path) -> Directory:
  return Directory(join(locate_checkpoints(workdir), UNEVALUATED))
