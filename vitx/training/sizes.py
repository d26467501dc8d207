"""Checks for sizes that no machine holds, before anything is allocated."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import psutil

from vitx.analysis.cost import tree_bytes
from vitx.config.errors import ConfigError
from vitx.training.parameters import parameter_names


def find_memory() -> int:
  """Returns the bytes of memory of this machine."""
  return psutil.virtual_memory().total


def check_batch(spec: Mapping[str, jax.ShapeDtypeStruct], batch_size: int) -> None:
  """Raises ConfigError for a batch larger than this machine's memory.

  Args:
    spec: The shapes and dtypes of an example's arrays, by their names.
    batch_size: The number of examples that this process holds at once.
  """
  total = find_memory()
  sizes = {name: math.prod(x.shape) * np.dtype(x.dtype).itemsize for name, x in spec.items()}
  if batch_size * sum(sizes.values()) > total:
    largest = max(sizes, key=lambda name: sizes[name])
    x = spec[largest]
    raise ConfigError(
      f"batch_size={batch_size}: so many examples, whose {largest!r} is {x.dtype} {x.shape}, take"
      f" {batch_size * sum(sizes.values()) / 1e9:,.0f} GB; this machine has {total / 1e9:,.0f} GB."
      " Lower it, or the size of an example in the config's data"
    )


def check_state(shapes: Any) -> None:
  """Raises ConfigError for a training state larger than this machine's memory.

  Args:
    shapes: The shapes and dtypes of the state, with `params`.
  """
  total, needed = find_memory(), tree_bytes(shapes)
  if needed > total:
    names = parameter_names(shapes.params)
    leaves = dict(zip(names, jax.tree.leaves(shapes.params), strict=True))
    largest = max(leaves, key=lambda name: math.prod(leaves[name].shape))
    raise ConfigError(
      f"model: parameters, their average and the optimizer's state take {needed / 1e9:,.0f} GB;"
      f" this machine has {total / 1e9:,.0f} GB. The largest parameter is {largest}"
      f" {leaves[largest].shape}; lower the fields of the model that it follows from"
    )
