"""Saves and restores checkpoints through Orbax, which only this file and `reading` import.

A checkpoint is a directory `STEP/` with two Orbax items: `state`, a nested dict of arrays, and
`record`, a JSON object. The record has the caller's values, the digest, shape and dtype of every
array, and a digest of the record itself. Every read checks these digests. Orbax writes to a
temporary directory, and renames it when it is complete. Orbax's `CheckpointManager` is not used:
its `save` silently returns False when there is a later step.
"""

import contextlib
import dataclasses
import json
import logging as std_logging
import sys
import time
from collections.abc import Collection, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from vitx.checkpoints import digest, processes, tree
from vitx.checkpoints.directory import Directory
from vitx.checkpoints.errors import (
  CheckpointError,
  CorruptCheckpoint,
  format_error,
  make_corrupt_error,
)
from vitx.checkpoints.reading import read_leaves, read_record
from vitx.config.errors import ConfigError

# Modules of Orbax that measure the timeout of a save by the wall clock. They get the monotonic
# clock instead: if the wall clock jumped an hour ahead, Orbax 0.12 gave most saves up.
TIMED = tuple(f"orbax.checkpoint._src.futures.{name}" for name in ("future", "signaling_client"))


class _SteadyTime:
  """A replacement for Python's module `time` whose `time.time` is the monotonic clock."""

  def __getattr__(self, name: str) -> Any:
    return getattr(time, "monotonic" if name == "time" else name)


for _module in filter(None, map(sys.modules.get, TIMED)):
  if getattr(_module, "time", None) is time:
    _module.time = _SteadyTime()  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A checkpoint that was read and matches its digests.

  Attributes:
    step: The step at which it was saved.
    state: The state as NumPy arrays, in nested dicts or in the structure of the target that was
      passed to `CheckpointStore.restore`.
    record: The JSON values that the caller saved with the state.
  """

  step: int
  state: Any
  record: dict[str, Any]


class CheckpointStore:
  """The checkpoints of one run.

  Every process of a run must make the same calls with the same values. Process 0 writes and every
  process reads, so all of them must see the directory. The store is a context manager; its exit
  waits for the save in progress.
  """

  def __init__(self, directory: str | Path | epath.Path, *, keep: int = 2, read_only: bool = False):
    """Opens the directory, creates it if absent, and removes the remains of killed saves.

    Args:
      directory: A local path, or a URL such as gs://bucket/path.
      keep: The number of newest checkpoints that are never deleted, at least 2; `save` can protect
        others, such as the best.
      read_only: Whether the store only reads, and creates, renames and deletes nothing.

    Raises:
      CheckpointError: The directory cannot be created or tidied.
    """
    self._directory = Directory(directory)
    self._keep, self._read_only = keep, read_only
    self._tidies = not read_only and jax.process_index() == 0
    self._pending: int | None = None  # the step of the save in progress
    self._replaces = False  # whether that save replaces the checkpoint of its step
    self._stay: Collection[int] = ()
    self._checkpointer: ocp.AsyncCheckpointer | None = None
    if self._tidies:
      try:
        self._directory.path.mkdir(parents=True, exist_ok=True)
        self._directory.remove_leftovers()
      except OSError as error:
        raise CheckpointError(f"cannot open {directory} for checkpoints: {error}") from error

  def __enter__(self) -> "CheckpointStore":
    return self

  def __exit__(self, kind, error, trace) -> None:
    try:
      self.close()
    except CheckpointError as failure:
      if error is None:
        raise
      logging.error("%s", failure)  # the error that ends the run has priority

  def steps(self) -> list[int]:
    """Returns the steps of the complete checkpoints, ascending."""
    return self._directory.steps()

  def latest(self) -> int | None:
    """Returns the step of the newest complete checkpoint, or `None` if there is none."""
    return max(self.steps(), default=None)

  def save(
    self, step: int, state: Any, record: Mapping[str, Any], *, stay: Collection[int] = ()
  ) -> None:
    """Waits for an earlier save, then starts to save a state; returns once its arrays are copied.

    Args:
      step: The step. It is greater than every step in the directory, or equal to the newest, whose
        checkpoint is replaced. On a disk it stays until the new one is complete.
      state: A tree of arrays, each of which is completely on this host's devices or memory.
      record: The JSON values to save with the state.
      stay: The steps whose checkpoints are not deleted, besides those of the newest `keep` steps.

    Raises:
      CheckpointError: This checkpoint or the previous one cannot be written, there is a later one,
        or the store is read-only; other checkpoints are untouched.
    """
    if self._read_only:
      raise CheckpointError(f"{self._directory} was opened read-only; no checkpoint is saved.")
    self.wait()
    newest = self._find_newest(())
    if step < newest:
      raise CheckpointError(
        f"cannot save step {step} in {self._directory}, which has the later step {newest}."
      )
    leaves = tree.name_arrays(state)
    stored = {"step": step, "record": record, "leaves": digest.describe(leaves)}
    stored = json.loads(json.dumps(stored))  # as a read will return it
    stored["digest"] = digest.digest_json(stored)
    # Orbax refuses arrays without elements; their shape in the record is enough.
    nonempty = tree.nest({name: array for name, array in leaves.items() if array.size})
    arguments = ocp.args.Composite(
      state=ocp.args.StandardSave(nonempty), record=ocp.args.JsonSave(stored)
    )
    if self._checkpointer is None:
      self._checkpointer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
      logging.get_absl_logger().addFilter(_without_tracebacks)
    self._replaces = step == newest and not self._directory.remote
    path = self._directory.name_new(step) if self._replaces else self._directory / step
    try:
      self._checkpointer.save(path, arguments, force=step == newest)
    except Exception as error:
      raise self._not_saved(step, error) from error
    self._pending, self._stay = step, stay

  def wait(self) -> None:
    """Waits for the save in progress, then deletes old checkpoints.

    It keeps the newest `keep` checkpoints, and those whose steps were passed to `save` as `stay`.

    Raises:
      CheckpointError: The save could not be written; the checkpoints before it are untouched.
    """
    if self._pending is None or self._checkpointer is None:
      return
    step, self._pending = self._pending, None
    try:
      self._checkpointer.wait_until_finished()
    except Exception as error:
      raise self._not_saved(step, error) from error
    if self._replaces:
      if self._tidies:
        self._directory.replace()
      processes.wait_for_all(f"checkpoint {step} is replaced")
    steps = self.steps()
    if step not in steps:
      raise self._not_saved(step, FileNotFoundError("it does not exist, though Orbax wrote it"))
    for old in sorted(set(steps).difference(steps[-self._keep :], self._stay)):
      if self._tidies:
        self._directory.delete(old)

  def close(self) -> None:
    """Waits for the save in progress and ends Orbax's threads. Raises the errors of `wait`."""
    try:
      self.wait()
    finally:
      self._drop_checkpointer()

  def restore(
    self, step: int, target: Any = None, *, only: Collection[str] | None = None
  ) -> Checkpoint:
    """Reads one checkpoint and checks its digests.

    Args:
      step: One of `steps()`.
      target: A tree of arrays or `jax.ShapeDtypeStruct`. The state must have its names, shapes and
        dtypes, and is returned in its structure. Without a target, the state is returned as nested
        dicts of arrays, which lack None and empty containers.
      only: The top-level keys of the state to read; the target then has only these keys. `None`
        means all.

    Raises:
      ConfigError: There is no checkpoint of this step.
      ShapeMismatch: The target's arrays differ in name, shape or dtype.
      CorruptCheckpoint: The content differs from the saved content.
      CheckpointError: The checkpoint cannot be read now, because permission, memory or connection
        is missing.
    """
    self.wait()
    if step not in (steps := self.steps()):
      raise ConfigError(f"{self._directory} has no checkpoint {step}, only the steps {steps}.")
    return self._restore(step, target, only)

  def restore_latest(
    self, target: Any = None, *, only: Collection[str] | None = None
  ) -> Checkpoint | None:
    """Restores the newest intact checkpoint.

    Corrupt checkpoints that are newer are logged and renamed to `corrupt-STEP`; a read-only store
    does not rename them.

    Args:
      target: A tree that the state must match; see `restore`.
      only: The top-level keys of the state to read; see `restore`.

    Returns:
      The checkpoint, or None if there are no checkpoints.

    Raises:
      CorruptCheckpoint: There are checkpoints, but all are corrupt; none is renamed.
      ConfigError, ShapeMismatch, CheckpointError: The checkpoint cannot be restored, see `restore`,
        or only some processes can read it.
    """
    self.wait()
    bad: dict[int, CorruptCheckpoint] = {}
    while (step := self._find_newest(bad)) >= 0:
      restored = None
      try:
        restored = self._restore(step, target, only)
      except CorruptCheckpoint as error:
        bad[step] = error
      processes.check_agreement(restored is not None, f"checkpoint {step} in {self._directory}")
      if restored is not None:
        for problem in bad.values():
          logging.warning("skipping a checkpoint: %s", problem)
        self._set_aside(bad)
        return restored
    if bad:
      raise CorruptCheckpoint(
        f"every checkpoint in {self._directory} is corrupt. Put an intact copy there, or move the"
        " directory away to start again. " + " ".join(map(str, bad.values()))
      )
    return None

  def _find_newest(self, bad: Container[int]) -> int:
    """Returns the newest step that process 0 finds, without those in `bad`; -1 if there is none."""
    steps = (step for step in self.steps() if step not in bad)
    return processes.broadcast_first(max(steps, default=-1))

  def _restore(self, step: int, target: Any, only: Collection[str] | None) -> Checkpoint:
    where = f"checkpoint {step} in {self._directory}"
    stored = read_record(self._directory / step, where)
    if stored["step"] != step:
      raise make_corrupt_error(where, "record", f"it belongs to step {stored['step']}")
    described = {
      name: leaf
      for name, leaf in stored["leaves"].items()
      if only is None or name.split("/")[0] in only
    }
    if target is not None:
      tree.check_match(described, target, where)
    leaves = read_leaves(self._directory / step, described, where)
    read = digest.describe(leaves)
    if wrong := [name for name, leaf in described.items() if read.get(name) != leaf]:
      more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
      raise make_corrupt_error(where, f"state leaf {wrong[0]!r}{more}", "not what was saved")
    state = tree.nest(leaves) if target is None else tree.fill(target, leaves)
    return Checkpoint(step, state, stored["record"])

  def _set_aside(self, steps: Iterable[int]) -> None:
    if self._tidies:
      for step in steps:
        path = self._directory.set_aside(step)
        logging.warning("moved the corrupt checkpoint %d to %s", step, path)
    if not self._read_only:
      processes.wait_for_all("corrupt checkpoints set aside")

  def _drop_checkpointer(self) -> None:
    checkpointer, self._checkpointer = self._checkpointer, None
    if checkpointer is not None:
      # After a failed save `close` raises its error again; the next save makes a new checkpointer.
      with contextlib.suppress(Exception):
        checkpointer.close()
      logging.get_absl_logger().removeFilter(_without_tracebacks)

  def _not_saved(self, step: int, error: Exception) -> CheckpointError:
    space = self._directory.space()
    self._drop_checkpointer()
    if self._tidies:
      # Orbax's threads may still be writing there; the next opening removes the remains.
      with contextlib.suppress(OSError):
        self._directory.remove_leftovers()
    last = self.latest()
    before = "There is no other." if last is None else f"The last one, {last}, is untouched."
    return CheckpointError(
      f"checkpoint {step} could not be written to {self._directory}: {format_error(error)}."
      f" {space} {before}"
    )


def _without_tracebacks(entry: std_logging.LogRecord) -> bool:
  """Returns False for a log entry with a traceback from one of Orbax's threads.

  This is a filter for the logger: False drops the entry. `wait` raises the thread's error anyway.
  """
  return not (entry.exc_info and "orbax" in entry.pathname)
