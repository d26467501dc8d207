"""Keeps the training examples in the devices' memory, so that the host sends only their indices."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from vitx.config.errors import ConfigError
from vitx.data.batches import TrainBatches
from vitx.data.dataset import Example
from vitx.data.stream import HostBatch
from vitx.training import parallel

# The share of a device's memory that examples may take if `data.device` is "auto".
SHARE = 0.1


def open_feed(
  batches: TrainBatches, device: str
) -> tuple[Callable[[int, int], Iterator[HostBatch]], Callable[[Any], Any] | None]:
  """Chooses whether the host sends the training batches, or the devices make them.

  If the devices make the batches, all examples are copied to each device, and the host sends only
  the indices of a batch's examples. The choice changes no bit of the batches.

  Args:
    batches: The training batches of the run.
    device: The setting `data.device`: "always", "never" or "auto". "auto" keeps the examples on
      accelerators if the host holds them in memory and they take at most a tenth of a device's
      memory.

  Returns:
    Two functions. The first takes `(start, stop)` and yields what the host sends for each step of
    `range(start, stop)`: a batch, or the indices of its examples. The second makes the batches on
    the devices from such indices, as arrays (devices, K, b, ...) for K steps with b examples per
    device; it is None if the host sends batches.

  Raises:
    ConfigError: `device` is "always", but the examples are not kept in the host's memory.
  """
  arrays = batches.arrays
  check(device, are_kept=arrays is not None)
  if arrays is None or device == "never" or (device == "auto" and not _fits(arrays)):
    return batches.iterate, None
  examples = parallel.replicate(arrays)
  gather = parallel.compile_once(_gather)
  iterate = lambda start, stop: map(batches.indices, range(start, stop))  # noqa: E731
  return iterate, lambda indices: gather(examples, indices)


def check(device: str, *, are_kept: bool) -> None:
  """Checks that the host keeps the examples in memory if `device` is "always".

  Args:
    device: The setting `data.device`.
    are_kept: Whether the host keeps the examples in memory.

  Raises:
    ConfigError: `device` is "always", but the host does not keep the examples.
  """
  if device == "always" and not are_kept:
    raise ConfigError(
      "data.device='always' needs examples that are kept in the host's memory, and this run's are"
      " not. Set data.memory='always' or data.device='auto'; with data.resize_mode='random',"
      " which draws another crop for each step, no example can be kept."
    )


def _fits(arrays: Example) -> bool:
  """Returns whether arrays take at most `SHARE` of each accelerator's memory; False on a CPU."""
  if jax.default_backend() == "cpu":
    return False
  memories = [device.memory_stats() or {} for device in jax.local_devices()]
  size = sum(array.nbytes for array in arrays.values())
  return size <= SHARE * min(each.get("bytes_limit", 0) for each in memories)


def _gather(examples: Any, indices: Any) -> dict[str, jax.Array]:
  """Makes a device's batches of K steps from the indices of their examples.

  With b examples per step, the arrays are (K, b, ...).
  """
  numbers = indices["example"]
  rows = {key: jnp.take(x, numbers, axis=0, mode="clip") for key, x in examples.items()}
  return {**rows, "index": indices["index"]}
