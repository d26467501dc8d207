"""Reads the two Orbax items of a checkpoint's directory."""

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
  """Reads and verifies the record that lies there."""
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
  """Reads the leaves of these names to the host, whatever devices they came from, unverified."""
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
    # The handler itself: a checkpointer would wait for the other processes, which may fail alone.
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    try:
      leaves |= tree.name_arrays(handler.restore(path / "state", args=arguments))
    except Exception as error:
      raise make_read_error(where, "state", error) from error
  return leaves


class _HostArrays(ocp.type_handlers.NumpyHandler):
  """Reads every leaf to its end, also when one fails, and then names that one.

  Orbax closes its event loop at the first failure; the reads still under way would then each print
  a traceback of their own.
  """

  async def deserialize(self, infos, args=None):
    read = super().deserialize
    args = args or [ocp.RestoreArgs()] * len(infos)
    reads = [read([info], [argument]) for info, argument in zip(infos, args, strict=True)]
    results = await asyncio.gather(*reads, return_exceptions=True)
    arrays: list[np.ndarray] = []
    for info, result in zip(infos, results, strict=True):
      if isinstance(result, BaseException):
        result.add_note(f"leaf {info.name}")
        raise result
      arrays += result
    return arrays
