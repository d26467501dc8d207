"""Examples in the devices' memory; for each step the host then sends only their numbers."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from vitx.config.errors import ConfigError
from vitx.data.batches import TrainBatches
from vitx.data.dataset import Example
from vitx.data.stream import HostBatch
from vitx.training import parallel

# The share of a device's memory that examples may take if the config leaves the choice open.
SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Feed:
  """The data that a run sends to its devices for each step.

  Attributes:
    iterate: A function `(start, stop)` that yields the data of the steps in `range(start, stop)`.
    fill: A function that turns the data into batches on the devices, (devices, K, b, ...); None if
      the data are the batches.
  """

  iterate: Callable[[int, int], Iterator[HostBatch]]
  fill: Callable[[Any], Any] | None = None


def open_feed(batches: TrainBatches, device: str) -> Feed:
  """Returns the feed of a run; puts the examples on every device if `device` asks for it.

  Batches that are made on the devices equal those of `batches` bit by bit.

  Args:
    batches: The training batches of the run.
    device: The setting always, never or auto; auto puts the examples on accelerators if they are
      kept in the host's memory and take at most a tenth of a device's.

  Raises:
    ConfigError: `device` is `always`, but the examples are not kept in the host's memory.
  """
  arrays = batches.arrays
  check(device, are_kept=arrays is not None)
  if arrays is None or device == "never" or (device == "auto" and not _fits(arrays)):
    return Feed(batches.iterate)
  examples = parallel.replicate(arrays)
  gather = parallel.compile_once(_gather)
  return Feed(
    lambda start, stop: map(batches.names, range(start, stop)),
    lambda names: gather(examples, names),
  )


def check(device: str, *, are_kept: bool) -> None:
  """Raises ConfigError if the devices should hold examples that the host does not keep."""
  if device == "always" and not are_kept:
    raise ConfigError(
      "data.device='always' needs examples that are kept in the host's memory, and this run's are"
      " not. Set data.memory='always' or data.device='auto'; with data.resize_mode='random',"
      " which draws another crop for each step, no example can be kept."
    )


def _fits(arrays: Example) -> bool:
  """Returns whether arrays take little of an accelerator's memory; False on a CPU."""
  if jax.default_backend() == "cpu":
    return False
  memories = [device.memory_stats() or {} for device in jax.local_devices()]
  size = sum(array.nbytes for array in arrays.values())
  return size <= SHARE * min(each.get("bytes_limit", 0) for each in memories)


def _gather(examples: Any, names: Any) -> dict[str, jax.Array]:
  """Returns a device's share of the batches, (K, b, ...), from the numbers of their examples."""
  numbers = names["example"]
  rows = {key: jnp.take(x, numbers, axis=0, mode="clip") for key, x in examples.items()}
  return {**rows, "index": names["index"]}
