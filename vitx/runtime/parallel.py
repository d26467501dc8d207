"""Data parallelism over the devices of all processes; the only file that uses `pmap`.

A function that is written for one device runs on every device, with a name for the axis of devices.
The state is replicated, and a batch is split along its leading axis. Programs are compiled before
they are first called, so that their memory is known and errors appear before the first step. Arrays
on the devices have a leading axis over this process's devices.
"""

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from vitx.config.errors import ConfigError
from vitx.runtime import sharing, signals
from vitx.runtime.progress import SOON, announce, spending

AXIS = "devices"
LEAST = 4  # the fewest examples for a device of one core; the speed with fewer is not known
HOST_DEVICES = "xla_force_host_platform_device_count"


def check_batch(batch_size: int, grad_accum_steps: int, multiple: int = 1) -> None:
  """Checks that devices and micro-batches get equal parts of a batch, multiples of `multiple`."""
  parts = jax.device_count() * grad_accum_steps * multiple
  if batch_size % parts:
    raise ConfigError(
      f"batch_size={batch_size} does not split evenly over {jax.device_count()} devices x"
      f" grad_accum_steps={grad_accum_steps}; take a multiple of {parts}."
    )


def use_cores(batches: Iterable[int], multiple: int = 1) -> None:
  """Makes a CPU appear as several JAX devices, about one per core, to use its cores better.

  XLA runs many operations of a step on one core, but several devices work in parallel. Nothing
  happens if JAX has already started, if the user has set a number of devices
  (`JAX_NUM_CPU_DEVICES`, `XLA_FLAGS`) or if there are several processes. GPUs and TPUs are never
  changed.

  Args:
    batches, multiple: The arguments of `count_devices`.
  """
  flags = os.environ.get("XLA_FLAGS", "")
  is_set = jax.config.values["jax_num_cpu_devices"] >= 0 or HOST_DEVICES in flags
  if is_set or jax.distributed.is_initialized():
    return
  count = count_devices(batches, count_cores(), multiple)
  with contextlib.suppress(RuntimeError):  # JAX has started, and its devices are fixed
    jax.config.update("jax_num_cpu_devices", count)


def count_cores() -> int:
  """Returns the number of threads of XLA on a CPU: `NPROC`, or one for each core."""
  if number := os.environ.get("NPROC"):
    return int(number)
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_devices(batches: Iterable[int], cores: int, multiple: int = 1) -> int:
  """Returns the largest number of devices, at most one per core, over which batches split evenly.

  Args:
    batches: The number of examples in a micro-batch, for each run. Each device gets at least
      `LEAST` examples of a micro-batch.
    cores: The number of cores.
    multiple: A number that divides each device's part of a micro-batch, if the batches allow it.
  """
  common = math.gcd(*batches)
  most = max(1, min(cores, common // LEAST))
  return max((n for n in range(1, most + 1) if common % (n * multiple) == 0), default=1)


def place(tree: Any) -> Any:
  """Puts host arrays (devices, ...) on this process's devices, one entry on each device."""
  mesh = jax.sharding.Mesh(np.array(jax.devices()), (AXIS,))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))

  def put(x: np.ndarray) -> jax.Array:
    shape = (jax.device_count(), *x.shape[1:])
    return jax.make_array_from_process_local_data(sharding, x, shape)

  return jax.tree.map(put, tree)


def replicate(tree: Any) -> Any:
  """Copies every leaf to each device, along a new leading axis over the devices."""
  devices = jax.local_device_count()
  return place(jax.tree.map(lambda x: np.broadcast_to(x, (devices, *np.shape(x))), tree))


def number(value: int) -> jax.Array:
  """Copies an integer to each of this process's devices, as an int32 array (devices,)."""
  return place(np.full(jax.local_device_count(), value, np.int32))


def unreplicate(tree: Any) -> Any:
  """Returns the copy on this process's first device, as host arrays without the devices' axis."""
  return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)).reshape(x.shape[1:]), tree)


def split(batch: Any) -> Any:
  """Splits this process's share of a batch, b examples, over the process's devices.

  An array (b, ...) becomes (devices, b / devices, ...).
  """
  devices = jax.local_device_count()
  return place(
    jax.tree.map(lambda x: x.reshape(devices, x.shape[0] // devices, *x.shape[1:]), batch)
  )


def split_steps(batches: Sequence[Any], steps: int) -> Any:
  """Splits this process's share of the batches of several steps over its devices.

  Args:
    batches: This process's share of the batch of each step, in order; at least one. A share has b
      examples, and its arrays are (b, ...).
    steps: The number K of steps for which the result has room, at least the number of batches.

  Returns:
    Arrays (devices, K, b / devices, ...), which are zero beyond the last batch.
  """
  devices = jax.local_device_count()

  def stack(*rows: np.ndarray) -> np.ndarray:
    shape = (devices, rows[0].shape[0] // devices, *rows[0].shape[1:])
    out = np.zeros((devices, steps, *shape[1:]), rows[0].dtype)
    for step, x in enumerate(rows):
      out[:, step] = x.reshape(shape)
    return out

  return place(jax.tree.map(stack, *batches))


def join(tree: Any) -> Any:
  """Joins the parts on this process's devices to host arrays; the inverse of `split`.

  The arrays are (b, ...), where b is the number of examples on all devices of this process.
  """

  def gather(x: jax.Array) -> np.ndarray:
    shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards]).reshape(-1, *x.shape[2:])

  return jax.tree.map(gather, tree)


@dataclasses.dataclass(frozen=True)
class DeviceProgram:
  """A compiled program that runs on every device.

  Attributes:
    compiled: The program. Its first argument are the constants.
    constants: The arrays that the traced function closed over, on the devices.
  """

  compiled: jax.stages.Compiled
  constants: Any

  def __call__(self, *arguments: Any) -> Any:
    """Runs the program with arrays on the devices, (devices, ...), and returns such arrays."""
    return self.compiled(self.constants, *arguments)

  def memory_analysis(self) -> Any:
    """Returns the compiler's report of the program's memory, see `jax.stages.Compiled`."""
    return self.compiled.memory_analysis()


def trace(function: Callable, *arguments: Any) -> tuple[Any, Any]:
  """Traces a function of one device's part of its arguments, in which `AXIS` has all devices.

  Returns:
    The trace, as `jax.make_jaxpr` returns it, and the shapes of the results.
  """
  axes = [(AXIS, jax.device_count())]
  with spending("tracing"):
    return jax.make_jaxpr(function, axis_env=axes, return_shape=True)(*arguments)


def compile_for(
  arguments: tuple, function: Callable, *, donate: tuple[int, ...] = (), options: Any = None
) -> DeviceProgram:
  """Compiles a function for every device, with the axis name `AXIS` for collectives.

  Arrays that the function closes over, such as the edges of a random graph, become arguments of the
  program. Functions that differ in their values alone share one program, also in the cache on disk.
  A signal breaks the compilation off, see `signals.wait`.

  Args:
    arguments: The arguments on the devices, or any objects with the arguments' shapes
      (devices, ...) and dtypes.
    function: A function of one device's part of the arguments.
    donate: The positions of the arguments whose memory the results may reuse.
    options: The compiler options.
  """
  local = jax.local_device_count()
  parts = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), arguments)
  closed, shapes = trace(function, *parts)
  constants = replicate(closed.consts)

  def call(constants: Sequence[Any], *arguments: Any) -> Any:
    results = jax.core.eval_jaxpr(closed.jaxpr, constants, *jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)

  def blank(x: Any) -> np.ndarray:
    # With several processes, pmap cannot lower for a `ShapeDtypeStruct`.
    return np.broadcast_to(np.zeros((), x.dtype), (local, *x.shape[1:]))

  mapped = jax.pmap(call, axis_name=AXIS, donate_argnums=[1 + position for position in donate])
  compiled = start_compiling(mapped, jax.tree.map(blank, (constants, *arguments)), options)()
  _give_back_memory()
  return DeviceProgram(compiled, constants)


def start_compiling(
  function: Any, arguments: tuple, options: Any = None
) -> Callable[[], jax.stages.Compiled]:
  """Starts to compile a function of `jax.jit` or `jax.pmap`, unless `sharing` has its program.

  Another thread compiles, since the compiler uses all cores only for a part of its time. Tracing
  stays in this thread, whose settings of JAX it depends on.

  Returns:
    A function that waits for the program; a signal breaks the compilation off.
  """
  with spending("tracing"):
    lowered = function.lower(*arguments)
  find_key = lambda: (hashlib.sha256(lowered.as_text().encode()).digest(), repr(options))  # noqa: E731
  result = sharing.once(find_key, lambda: signals.start(lambda: lowered.compile(options)))

  def wait() -> jax.stages.Compiled:
    with spending("compiling"):
      return signals.wait(result)

  return wait


def _give_back_memory() -> None:
  """Returns to the operating system the memory that the compiler has freed but glibc keeps."""
  if sys.platform == "linux":
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
      trim(0)


def compile_once(function: Callable, what: str = "") -> Callable:
  """Returns a function that runs on every device and is compiled when it is first called.

  The arguments of later calls must have the shapes of the first call's arguments.

  Args:
    function: A function of one device's part of its arguments.
    what: The text that the console shows during a long compilation; "" shows nothing.
  """
  program: list[DeviceProgram] = []

  def call(*arguments: Any) -> Any:
    if not program:
      work = functools.partial(compile_for, arguments, function)
      program.append(announce(what, work, patience=SOON) if what else work())
    return program[0](*arguments)

  return call
