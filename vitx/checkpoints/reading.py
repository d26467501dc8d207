"""Reads a checkpoint's two parts from Orbax's files: the record and the arrays of the state."""

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


def read_record(path: epath.Path, where: str) -> dict[str, Any]:
  """Reads the record of a checkpoint and compares its digest."""
  try:
    stored = ocp.JsonCheckpointHandler().restore(path / "record")
  except Exception as error:
    raise make_read_error(where, "record", error) from error
  claimed = stored.pop("digest", None) if isinstance(stored, dict) else None
  if claimed is None or claimed != digest.digest_json(stored):
    raise make_corrupt_error(where, "record", "not what was saved")
  return stored


def read_leaves(
  path: epath.Path, described: Mapping[str, Mapping], where: str
) -> dict[str, np.ndarray]:
  """Reads the arrays of a checkpoint to the host, whatever devices saved them.

  Nothing is read if the shape of an array is not the described one, or if the arrays are larger
  than `files.check_inflated` allows. Digests are not compared here.

  Args:
    path: The directory of the arrays.
    described: The description of each array by name, from the record.
    where: The name of the checkpoint, for errors.
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
  """Compares the shapes that the files declare with the record, before arrays are allocated."""
  declared = sum(
    math.prod(leaf["shape"]) * jax.numpy.dtype(leaf["dtype"]).itemsize
    for leaf in described.values()
  )
  # The sizes of the files are added up only for a state that is so large; few are.
  if declared > files.limit() and "://" not in str(path):
    stored = sum(each.stat().st_size for each in Path(path).rglob("*") if each.is_file())
    files.check_inflated(where, declared, stored)
  try:
    found = tree.name_leaves(handler.metadata(path).tree)
  except Exception as error:
    raise make_read_error(where, "state", error) from error
  for name, leaf in described.items():
    if name in found and 0 not in leaf["shape"] and [*found[name].shape] != [*leaf["shape"]]:
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

  If Orbax meets a leaf of an unknown kind, it never awaits the coroutines that it has got before.
  """

  def __init__(self, make: Callable[[], Coroutine]):
    self._make = make

  def __await__(self) -> Generator:
    return self._make().__await__()


async def _read_all(infos: Sequence[Any], reads: Sequence[Awaitable[Sequence]]) -> list[Any]:
  """Awaits the reads of all arrays, and raises the first error with its array's name."""
  results = await asyncio.gather(*reads, return_exceptions=True)
  found: list[Any] = []
  for info, result in zip(infos, results, strict=True):
    if isinstance(result, BaseException):
      result.add_note(f"leaf {info.name}")
      raise result
    found += result
  return found
