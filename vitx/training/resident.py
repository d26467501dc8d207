"""Examples in the devices' memory: a step is told which it takes, and nothing else is sent."""

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

# Of a device's memory that examples may take without being asked for.
SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Feed:
  """What a run sends to its devices for each step.

  Attributes:
    iterate: yields it for the steps from one up to another.
    fill: makes the batches of it on the devices, (devices, K, b, ...); None if it is the batches.
  """

  iterate: Callable[[int, int], Iterator[HostBatch]]
  fill: Callable[[Any], Any] | None = None


def open_feed(batches: TrainBatches, device: str) -> Feed:
  """Returns the feed of a run, the examples put on every device where that is wished.

  Its batches are those of `batches`, to the bit.

  Args:
    batches: of the run.
    device: always | never | auto, which puts them on accelerators where they are kept in the host's
      memory and take at most a tenth of a device's.

  Raises:
    ConfigError: `always`, and the examples are not kept in the host's memory.
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
  """Raises ConfigError if examples are to lie on the devices that the host does not keep."""
  if device == "always" and not are_kept:
    raise ConfigError(
      "data.device='always' puts the examples on the devices that are kept in memory, and these are"
      " not: set data.memory='always' (with data.resize_mode='random', which draws anew for each"
      " step, none can be kept), or data.device='auto'"
    )


def _fits(arrays: Example) -> bool:
  """Returns whether arrays take little of an accelerator's memory; a CPU's is the host's."""
  if jax.default_backend() == "cpu":
    return False
  memories = [device.memory_stats() or {} for device in jax.local_devices()]
  size = sum(array.nbytes for array in arrays.values())
  return size <= SHARE * min(each.get("bytes_limit", 0) for each in memories)


def _gather(examples: Any, names: Any) -> dict[str, jax.Array]:
  """Returns the batches (K, b, ...) of named examples, of a device's share."""
  numbers = names["example"]
  rows = {key: jnp.take(x, numbers, axis=0, mode="clip") for key, x in examples.items()}
  return {**rows, "index": names["index"]}
