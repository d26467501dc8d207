"""Arithmetic on token numbers that several patterns use."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.layout import TokenLayout

Index = Any  # an integer, or an integer array of NumPy or JAX, traced or not
Blocks = np.ndarray | None  # the sorted indices of key blocks; None for all blocks


def namespace(*arrays: Index) -> Any:
  """Returns `jax.numpy` if any of the arrays is a JAX array, else `numpy`."""
  return jnp if any(isinstance(array, jax.Array) for array in arrays) else np


def in_grid(layout: TokenLayout, q: Index, k: Index) -> Any:
  """Returns whether both tokens belong to the grid and not to the prefix."""
  return (q >= layout.prefix) & (k >= layout.prefix)


def coordinates(layout: TokenLayout, index: Index) -> list[Index]:
  """Returns the grid coordinates of tokens, one array per axis; meaningless for prefix tokens."""
  position, result = index - layout.prefix, []
  for extent in reversed(layout.grid):
    result.append(position % extent)
    position = position // extent
  return result[::-1]


def blocks_between(first: int, last: int, block: int, length: int) -> np.ndarray:
  """Returns the blocks of the tokens `first ... last`, clipped to 0 ... length-1."""
  first, last = max(first, 0), min(last, length - 1)
  return np.arange(first // block, last // block + 1) if first <= last else np.arange(0)


def distinct(parts: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the block indices that occur in any of the arrays, sorted, without repeats."""
  return np.unique(np.concatenate([np.arange(0), *parts]))


def blocks_of(tokens: Any, block: int, length: int) -> np.ndarray:
  """Returns the blocks of the given tokens; tokens outside 0 ... length-1 are left out."""
  tokens = np.asarray(tokens, np.int64).reshape(-1)
  return np.unique(tokens[(tokens >= 0) & (tokens < length)] // block)


def blocks_of_runs(first: np.ndarray, last: np.ndarray, block: int, length: int) -> np.ndarray:
  """Returns the blocks that runs of tokens touch.

  Args:
    first: The first token of each run.
    last: The last token of each run. A run has at most `block` tokens, so it touches at most two
      blocks, those of its ends.
    block: The number of tokens in a block.
    length: The number of tokens; runs are clipped to 0 ... length-1.
  """
  inside = (last >= 0) & (first < length)
  return blocks_of(np.clip([first[inside], last[inside]], 0, length - 1), block, length)
