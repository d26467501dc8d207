"""The parts into which the kernelized path splits a pattern, each with its own order of tokens."""

import dataclasses
import functools
import hashlib
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
  from vitx.ops.patterns.base import Pattern


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
  """An order of N tokens; hashable by content.

  Attributes:
    numbers: The token at each place, int (N',), N' >= N. Every token occurs once; a number of N or
      more is padding.
    length: The number N of tokens.
  """

  numbers: np.ndarray
  length: int

  def __post_init__(self):
    numbers = np.ascontiguousarray(self.numbers, np.int64)
    if not np.array_equal(np.sort(numbers), np.arange(numbers.size)) or numbers.size < self.length:
      raise ValueError(f"numbers must be a permutation of 0 ... n - 1, n >= {self.length}.")
    numbers.flags.writeable = False
    object.__setattr__(self, "numbers", numbers)

  @functools.cached_property
  def places(self) -> np.ndarray:
    """Returns the place of each token, int (N',), the inverse of `numbers`."""
    return np.argsort(self.numbers)

  @functools.cached_property
  def axes(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns (shape, axes) if this order is a transposition, else `None`.

    Reshaping the tokens to the shape and transposing them by the axes gives this order without a
    gather.
    """
    extents, strides, rest = [], [], self.numbers
    while rest.size > 1:  # the fastest axis first: the longest run of equal steps
      step = int(rest[1] - rest[0])
      breaks = np.flatnonzero(np.diff(rest) != step)
      extent = int(breaks[0]) + 1 if breaks.size else rest.size
      if step < 1 or rest.size % extent:
        return None
      runs = rest.reshape(-1, extent)
      if not np.array_equal(runs, runs[:, :1] + step * np.arange(extent)):
        return None
      extents.append(extent)
      strides.append(step)
      rest = runs[:, 0]
    slowest_first = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    shape = tuple(extents[axis] for axis in slowest_first)
    if any(
      strides[axis] != math.prod(shape[place + 1 :]) for place, axis in enumerate(slowest_first)
    ):
      return None
    axes = tuple(slowest_first.index(axis) for axis in reversed(range(len(strides))))
    return shape, axes

  @functools.cached_property
  def _digest(self) -> bytes:
    return hashlib.sha256(self.numbers.tobytes()).digest() + bytes(str(self.length), "ascii")

  def __hash__(self) -> int:
    return hash(self._digest)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Order) and self._digest == other._digest


@dataclasses.dataclass(frozen=True)
class Part:
  """Some edges of a pattern, with an order of the tokens and a method of computing the attention.

  A run is a piece of consecutive tokens in that order, within which tokens attend each other.

  Attributes:
    pattern: The edges, in the tokens' usual order.
    core: The method. "block_sparse" computes the blocks that contain edges. "block_diagonal" cuts
      the order into runs of `block` tokens, and a token attends its own run; a single run is dense
      attention. "drawn" computes whole blocks, the `GivenBlocks` that are known only at run time.
      "summaries" gathers the keys of `EarlierSummaries` once for all queries.
    block: The number of tokens in a block, or in a run.
    order: The order of the tokens; `None` for the usual one.
    causal: Whether a token of "block_diagonal" attends only itself and earlier tokens of its run.
      Padding must then be last in its run.
    self_edge: Whether a token of "block_diagonal" attends itself.
  """

  pattern: "Pattern"
  core: Literal["block_sparse", "block_diagonal", "drawn", "summaries"]
  block: int
  order: Order | None = None
  causal: bool = False
  self_edge: bool = True

  @property
  def is_reordered(self) -> bool:
    """Returns whether the part has an order of its own or is cut into runs."""
    return self.order is not None or self.core == "block_diagonal"


def as_order(numbers: Any, length: int) -> Order | None:
  """Converts the result of `Pattern.permutation` to an `Order`; `None` is the usual order."""
  if numbers is None or np.array_equal(numbers, np.arange(length)):
    return None
  return Order(np.asarray(numbers), length)
