"""Data parallelism: the one file that mentions `pmap`.

A function written for one device and an axis name runs on every device of every process. State is
replicated, a batch is split along its leading axis. `jax.pmap` compiles ahead of time here, so that
memory is known and errors surface before the first step.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from vitx.errors import ConfigError

AXIS = "devices"


def check_batch(batch_size: int, grad_accum_steps: int, field: str = "batch_size") -> None:
  """Raises ConfigError if a batch does not split evenly; names the nearest sizes that do."""
  parts = jax.device_count() * grad_accum_steps
  if batch_size % parts or batch_size < parts:
    below = batch_size // parts * parts
    fits = ", ".join(str(size) for size in (below, below + parts) if size > 0)
    micro = f" x grad_accum_steps={grad_accum_steps}" if grad_accum_steps > 1 else ""
    raise ConfigError(
      f"{field}={batch_size} does not split over {jax.device_count()} devices{micro};"
      f" nearest that fit: {fits}"
    )


def place(tree: Any) -> Any:
  """Puts host arrays (local devices, ...) on the devices, each process its part of the whole."""
  mesh = jax.sharding.Mesh(np.array(jax.devices()), (AXIS,))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))

  def put(x: np.ndarray) -> jax.Array:
    shape = (jax.device_count(), *x.shape[1:])
    return jax.make_array_from_process_local_data(sharding, x, shape)

  return jax.tree.map(put, tree)


def replicate(tree: Any) -> Any:
  """Copies every leaf to each device: a leading axis of that length."""
  devices = jax.local_device_count()

  def copies(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return np.broadcast_to(x, (devices, *x.shape))

  return place(jax.tree.map(copies, tree))


def flag(value: bool) -> jax.Array:
  """Returns this process's 0 or 1 on each of its devices, int32 (devices,)."""
  return place(np.full(jax.local_device_count(), value, np.int32))


def unreplicate(tree: Any) -> Any:
  """Returns the first local device's copy, as host arrays."""
  return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)).reshape(x.shape[1:]), tree)


def split(batch: Any) -> Any:
  """Splits this process's rows over its devices: (b, ...) -> (devices, b / devices, ...)."""
  devices = jax.local_device_count()
  return place(
    jax.tree.map(lambda x: x.reshape(devices, x.shape[0] // devices, *x.shape[1:]), batch)
  )


def join(tree: Any) -> Any:
  """Returns this process's rows as host arrays: the inverse of `split`."""
  return jax.tree.map(lambda x: np.asarray(_local(x)).reshape(-1, *x.shape[2:]), tree)


def _local(x: jax.Array) -> np.ndarray:
  shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
  return np.concatenate([np.asarray(shard.data) for shard in shards])


def compile_for(
  arguments: tuple, function: Callable, *, donate: tuple[int, ...] = (), options: Any = None
) -> jax.stages.Compiled:
  """Compiles `function` for every device, over the axis `AXIS`.

  Args:
    arguments: placed arrays, or anything with their shape (devices, ...) and dtype.
    function: of one device's part of the arguments.
    donate: numbers of the arguments whose memory the results may take.
    options: for the compiler.

  Returns:
    The compiled program; it takes placed arrays and returns such.
  """
  local = jax.local_device_count()

  def blank(x: Any) -> np.ndarray:
    # No `ShapeDtypeStruct`: with several processes pmap cannot lower for one.
    return np.broadcast_to(np.zeros((), x.dtype), (local, *x.shape[1:]))

  mapped = jax.pmap(function, axis_name=AXIS, donate_argnums=donate)
  lowered = mapped.lower(*jax.tree.map(blank, arguments))
  return lowered.compile(compiler_options=options)


def compile_once(function: Callable) -> Callable:
  """Returns `function` on every device, compiled for the shapes of its first call."""
  program: list[jax.stages.Compiled] = []

  def call(*arguments: Any) -> Any:
    if not program:
      program.append(compile_for(arguments, function))
    return program[0](*arguments)

  return call
