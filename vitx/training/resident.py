"""Keeps the training examples in the devices' memory, so that the host sends only their indices."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from vitx.data.batches import TrainBatches
from vitx.data.dataset import Example
from vitx.data.in_memory import Storage
from vitx.data.stream import HostBatch
from vitx.runtime import parallel

# The share of a device's memory that examples may take if `data.device` is "auto".
SHARE = 0.1
Feed = tuple[Callable[[int, int], Iterator[HostBatch]], Callable[[Any], Any] | None]


def open_feed(batches: TrainBatches, device: str) -> Feed:
  """Chooses whether the host sends the training batches, or the devices make them.

  If the devices make the batches, all examples are copied to each device, and the host sends only
  the indices of a batch's examples. The choice changes no bit of the batches.

  Args:
    batches: The training batches of the run.
    device: The setting `data.device`: "always", "never" or "auto". Only examples in the host's
      memory are copied; "auto" does so on accelerators that have room.

  Returns:
    Two functions. The first takes `(start, stop)` and yields what the host sends for each step of
    `range(start, stop)`: a batch, or the indices of its examples. The second makes the batches on
    the devices from such indices, as arrays (devices, K, b, ...) for K steps with b examples per
    device; it is None if the host sends batches.
  """
  storage = batches.storage
  if storage is None or device == "never" or (device == "auto" and not _fits(storage.arrays)):
    return batches.iterate, None
  examples = _copy(storage)
  gather = parallel.compile_once(_gather)
  iterate = lambda start, stop: map(batches.indices, range(start, stop))  # noqa: E731
  return iterate, lambda indices: gather(examples, indices)


def _copy(storage: Storage) -> Any:
  """Returns the copy of arrays on the devices, which is made anew after more examples are read."""
  if storage.copy is None or storage.copy[0] < storage.is_read.sum():
    storage.copy = None  # gives its memory back before the next copy needs it
    storage.copy = storage.is_read.sum(), parallel.replicate(storage.arrays)
  return storage.copy[1]


def _fits(arrays: Example) -> bool:
  """Returns whether arrays take at most `SHARE` of each accelerator's memory; False on a CPU."""
  if jax.default_backend() == "cpu":
    return False
  memories = [device.memory_stats() or {} for device in jax.local_devices()]
  size = sum(array.nbytes for array in arrays.values())
  return size <= SHARE * min(memory.get("bytes_limit", 0) for memory in memories)


def _gather(examples: Any, indices: Any) -> dict[str, jax.Array]:
  """Makes a device's batches of K steps from the indices of their examples."""
  numbers = indices["example"]
  rows = {key: jnp.take(x, numbers, axis=0, mode="clip") for key, x in examples.items()}
  return rows | {key: x for key, x in indices.items() if key != "example"}
