"""Reads the two parts of a checkpoint from Orbax's files: the state and the record.

The state consists of arrays. The record is a JSON object, which describes these arrays.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vitx.checkpoints import digest, tree
from vitx.checkpoints.errors import make_corrupt_error, make_read_error


def read_record(path: epath.Path, where: str) -> dict[str, Any]:
  """Returns the record of a checkpoint, a JSON object, without the record's digest.

  Args:
    path: The directory of the checkpoint.
    where: The name of the checkpoint, for errors.

  Raises:
    CorruptCheckpoint: The record does not match its digest.
    CheckpointError: The record cannot be read now.
  """
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
  """Returns the arrays of a checkpoint's state by name, in the memory of the host.

  The devices that saved the arrays need not exist here. Digests are not compared.

  Args:
    path: The directory of the checkpoint.
    described: The description of each array by name, from the record.
    where: The name of the checkpoint, for errors.

  Raises:
    CorruptCheckpoint: An array has another shape than its description, or is damaged.
    CheckpointError: The arrays cannot be read now.
  """
  leaves = {
    name: np.zeros(leaf["shape"], jax.numpy.dtype(leaf["dtype"]))
    for name, leaf in described.items()
    if 0 in leaf["shape"]
  }
  names = tree.nest({name: 0 for name in described if name not in leaves})
  if names:
    on_host = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), names)
    arguments = ocp.args.PyTreeRestore(names, restore_args=on_host, partial_restore=True)
    handlers = ocp.type_handlers
    registry = handlers.create_type_handler_registry(
      (np.ndarray, _HostArrays()),
      (jax.Array, handlers.ArrayHandler()),  # unused; Orbax warns without it
    )
    # The handler is called directly: a checkpointer would wait for the other processes, but a
    # process may fail alone.
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    try:
      leaves |= tree.name_arrays(handler.restore(path / "state", args=arguments))
    except Exception as error:
      raise make_read_error(where, "state", error) from error
  return leaves


class _HostArrays(ocp.type_handlers.NumpyHandler):
  """A handler of Orbax that waits for all reads even if one fails, and names the array that failed.

  Orbax closes its event loop at the first failure; each read that was still in progress would then
  print a traceback.
  """

  async def deserialize(self, infos, args=None):
    read = super().deserialize
    args = args or [ocp.RestoreArgs()] * len(infos)
    reads = [read([info], [argument]) for info, argument in zip(infos, args, strict=True)]
    results, arrays = await asyncio.gather(*reads, return_exceptions=True), []
    for info, result in zip(infos, results, strict=True):
      if isinstance(result, BaseException):
        result.add_note(f"leaf {info.name}")
        raise result
      arrays += result
    return arrays
