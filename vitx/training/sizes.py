"""Refuses batches and states that exceed this machine's memory, before they are allocated."""

from collections.abc import Mapping
from typing import Any

import jax
import psutil

from vitx.analysis.cost import tree_bytes
from vitx.config.errors import ConfigError
from vitx.training.parameters import parameter_names


def find_memory() -> int:
  """Returns the size of this machine's memory in bytes."""
  return psutil.virtual_memory().total


def check_batch(spec: Mapping[str, jax.ShapeDtypeStruct], batch_size: int) -> None:
  """Checks that a batch fits this machine's memory.

  Args:
    spec: The shapes and dtypes of an example's arrays, by their names.
    batch_size: The number of examples that this process holds at once.

  Raises:
    ConfigError: The batch is too large; the message names the largest array.
  """
  _check_memory(
    f"batch_size={batch_size}: a batch of so many examples",
    batch_size * tree_bytes(dict(spec)),
    spec,
    "batch_size, or the size of an example in the config's data",
  )


def check_state(shapes: Any) -> None:
  """Checks that a training state fits this machine's memory.

  Args:
    shapes: The shapes and dtypes of the state, in the structure of a `TrainState`.

  Raises:
    ConfigError: The state is too large; the message names the largest array.
  """
  names, leaves = parameter_names(shapes.params), jax.tree.leaves(shapes.params)
  _check_memory(
    "model: the parameters, their average and the optimizer's state",
    tree_bytes(shapes),
    dict(zip(names, leaves, strict=True)),
    "the fields of the model that decide its shape",
  )


def _check_memory(
  what: str, needed: int, arrays: Mapping[str, jax.ShapeDtypeStruct], fields: str
) -> None:
  """Checks that arrays of a total size fit this machine's memory.

  Args:
    what: The name of the whole, such as "a batch", which begins the error message.
    needed: The total size in bytes.
    arrays: The arrays by name; the error message names the largest.
    fields: The fields of the config to lower, for the error message.

  Raises:
    ConfigError: The size is more than the memory.
  """
  total = find_memory()
  if needed > total:
    largest = max(arrays, key=lambda name: tree_bytes(arrays[name]))
    x = arrays[largest]
    raise ConfigError(
      f"{what} would take {needed / 1e9:,.0f} GB, but this machine has {total / 1e9:,.0f} GB. The"
      f" largest array is {largest!r}, {x.dtype} {x.shape}. Lower {fields}."
    )
