"""Reads the two parts of a checkpoint from Orbax's files: the state and the record.

The state consists of arrays. The record is a JSON object, which describes these arrays.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vitx import files
from vitx.checkpoints import digest, tree
from vitx.checkpoints.errors import make_corrupt_error, make_read_error
from vitx.checkpoints.workdir import find_problem

# The forms of a record and of the description of each leaf in it, see `find_problem`.
_RECORD: dict[str, Any] = {"step": int, "record": dict, "leaves": dict}
_LEAF: dict[str, Any] = {"shape": [int], "dtype": str, "digest": str}


def read_record(path: epath.Path, where: str) -> dict[str, Any]:
  """Returns the record of a checkpoint, a JSON object, without the record's digest.

  Args:
    path: The directory of the checkpoint.
    where: The name of the checkpoint, for errors.

  Raises:
    CorruptCheckpoint: The record does not match its digest, or lacks a field or has one of another
      type. Somebody else may have written it.
    CheckpointError: The record cannot be read now.
  """
  try:
    stored = ocp.JsonCheckpointHandler().restore(path / "record")
  except Exception as error:
    raise make_read_error(where, "record", error) from error
  claimed = stored.pop("digest", None) if isinstance(stored, dict) else None
  if claimed is None or claimed != digest.digest_json(stored):
    raise make_corrupt_error(where, "record", "not what was saved")
  problem = find_problem(stored, _RECORD)
  for name, leaf in () if problem else stored["leaves"].items():
    problem = problem or find_problem(leaf, _LEAF, name) or _find_problem_of_dtype(name, leaf)
  if problem:
    raise make_corrupt_error(where, "record", problem)
  return stored


def _find_problem_of_dtype(name: str, leaf: Mapping[str, Any]) -> str:
  try:
    np.empty((0, *leaf["shape"]), jax.numpy.dtype(leaf["dtype"]))
  except (TypeError, ValueError) as error:  # an unknown dtype, or sizes that no array can have
    return f"{name}: {error}"
  return ""


def read_leaves(
  path: epath.Path, described: Mapping[str, Mapping], where: str
) -> dict[str, np.ndarray]:
  """Returns the arrays of a checkpoint's state by name, in the memory of the host.

  The devices that saved the arrays need not exist here. Digests are not compared.

  Args:
    path: The directory of the checkpoint.
    described: The description of each array by name, from the record.
    where: The name of the checkpoint, for errors.

  Raises:
    CorruptCheckpoint: An array has another shape than its description, or is damaged.
    CheckpointError: The arrays cannot be read now.
    ConfigError: The arrays are larger than `files.check_inflated` allows; none was read.
  """
  leaves = {
    name: np.zeros(leaf["shape"], jax.numpy.dtype(leaf["dtype"]))
    for name, leaf in described.items()
    if 0 in leaf["shape"]
  }
  wanted = tree.nest({name: 0 for name in described if name not in leaves})
  if wanted:
    on_host = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
    arguments = ocp.args.PyTreeRestore(wanted, restore_args=on_host, partial_restore=True)
    handlers = ocp.type_handlers
    registry = handlers.create_type_handler_registry(
      (np.ndarray, _HostArrays()),
      (jax.Array, handlers.ArrayHandler()),  # unused; Orbax warns without it
    )
    # The handler is called directly: a checkpointer would wait for the other processes, but a
    # process may fail alone.
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    _check_declared(handler, path / "state", described, where)
    try:
      leaves |= tree.name_arrays(handler.restore(path / "state", args=arguments))
    except Exception as error:
      raise make_read_error(where, "state", error) from error
  return leaves


def _check_declared(
  handler: ocp.PyTreeCheckpointHandler,
  path: epath.Path,
  described: Mapping[str, Mapping],
  where: str,
) -> None:
  """Checks the sizes of arrays before memory for them is allocated.

  The shapes that Orbax's files declare must equal the shapes in the record, and
  `files.check_inflated` must allow the sum of the sizes. A chunk, the part of an array that is
  inflated at once, must not be larger than the array. The errors are those of `read_leaves`.
  """
  declared = sum(
    math.prod(leaf["shape"]) * jax.numpy.dtype(leaf["dtype"]).itemsize
    for leaf in described.values()
  )
  # Only a state above the limit needs the sizes of its files, which take time to add up.
  if declared > files.limit() and "://" not in str(path):
    stored = sum(each.stat().st_size for each in Path(path).rglob("*") if each.is_file())
    files.check_inflated(where, declared, stored)
  try:
    found = tree.name_leaves(handler.metadata(path).tree)
  except Exception as error:
    raise make_read_error(where, "state", error) from error
  for name, leaf in described.items():
    if name not in found or 0 in leaf["shape"]:
      continue
    chunk = found[name].storage.chunk_shape if found[name].storage else None
    is_large = chunk is not None and math.prod(chunk) > math.prod(leaf["shape"])
    if is_large or [*found[name].shape] != [*leaf["shape"]]:
      raise make_corrupt_error(where, f"state leaf {name!r}", "not what was saved")


class _HostArrays(ocp.type_handlers.NumpyHandler):
  """A handler of Orbax that waits for all reads even if one fails, and names the array that failed.

  Orbax closes its event loop at the first failure; each read that was still in progress would then
  print a traceback.
  """

  async def deserialize(self, infos, args=None):
    read = super().deserialize
    args = args or [ocp.RestoreArgs()] * len(infos)
    pairs = zip(infos, args, strict=True)
    return await _read_all(infos, [read([info], [argument]) for info, argument in pairs])

  def metadata(self, infos):
    read = super().metadata
    return _Later(lambda: _read_all(infos, [read([info]) for info in infos]))


class _Later:
  """An awaitable that makes its coroutine only when it is awaited.

  Python warns of a coroutine that is never awaited. If Orbax meets a leaf of an unknown kind, it
  raises, and never awaits the awaitables that it has received before.
  """

  def __init__(self, make: Callable[[], Coroutine]):
    self._make = make

  def __await__(self) -> Generator:
    return self._make().__await__()


async def _read_all(infos: Sequence[Any], reads: Sequence[Awaitable[Sequence]]) -> list[Any]:
  """Awaits the reads of all arrays and returns their results in one list.

  If reads fail, the first error is raised, with the name of its array as a note.
  """
  results = await asyncio.gather(*reads, return_exceptions=True)
  found: list[Any] = []
  for info, result in zip(infos, results, strict=True):
    if isinstance(result, BaseException):
      result.add_note(f"leaf {info.name}")
      raise result
    found += result
  return found
