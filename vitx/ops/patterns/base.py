"""What an attention pattern is, and how patterns combine.

A pattern is a set of edges (query, key), defined by an elementwise predicate on index arrays. All
else (masks, block lists, figures, pictures) is derived from it. A pattern of your own is a frozen
dataclass with `allows`; `candidates` makes it cheap at many tokens, and is optional.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.errors import ConfigError
from vitx.ops.layout import TokenLayout

Index = Any  # an integer, or an integer array of NumPy or JAX, traced or not


def namespace(*arrays: Index) -> Any:
  """Returns `jax.numpy` if any of the arrays is JAX's, else `numpy`."""
  return jnp if any(isinstance(array, jax.Array) for array in arrays) else np


@dataclasses.dataclass(frozen=True)
class Pattern:
  """A static sparse attention. Combine with `|` and `&`; see also `per_head` and `cycle`."""

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    """Whether query token `q` may attend key token `k`.

    Args:
      layout: how the N tokens lie.
      q, k: token indices in 0 ... N-1, prefix tokens first; any shapes that broadcast.
      head: head indices, broadcastable to `q` and `k`.

    Returns:
      bool, broadcastable to the common shape of `q`, `k` and `head`; NumPy or JAX as they are.

    Raises:
      ConfigError: the pattern cannot be laid over this layout.
    """
    raise NotImplementedError

  def candidates(
    self, layout: TokenLayout, first: int, last: int, block: int, head: int
  ) -> np.ndarray | None:
    """Key blocks that hold every key of the queries `first ... last`; None: any may.

    Args:
      layout: as for `allows`.
      first, last: token indices, both inclusive.
      block: b, tokens in a block.
      head: one head.

    Returns:
      Indices of key blocks, sorted, without repeats; may hold some too many.
    """
    return None

  @property
  def head_period(self) -> int:
    """Heads after which the pattern repeats; 1: all heads have the same edges."""
    return 1

  @property
  def on_grid(self) -> bool:
    """Whether prefix tokens have no edges and the others those of the grid without a prefix."""
    return False

  def at(self, layer: int) -> "Pattern":
    """The pattern of one layer: picks from cycles, and the layer's own random draw."""
    return self

  def __or__(self, other: "Pattern") -> "Union":
    return Union((self, other))

  def __and__(self, other: "Pattern") -> "Intersection":
    return Intersection((self, other))


def blocks_between(first: int, last: int, block: int, length: int) -> np.ndarray:
  """Blocks of the tokens `first ... last`, clipped to 0 ... length-1."""
  first, last = max(first, 0), min(last, length - 1)
  return np.arange(first // block, last // block + 1) if first <= last else np.arange(0)


def blocks_of(tokens: Any, block: int, length: int) -> np.ndarray:
  """Blocks of the given tokens; tokens outside 0 ... length-1 are left out."""
  tokens = np.asarray(tokens, np.int64).reshape(-1)
  return np.unique(tokens[(tokens >= 0) & (tokens < length)] // block)


def blocks_of_runs(first: np.ndarray, last: np.ndarray, block: int, length: int) -> np.ndarray:
  """Blocks of the runs of tokens `first[i] ... last[i]`, clipped; none is longer than a block."""
  inside = (last >= 0) & (first < length)
  return blocks_of(np.clip([first[inside], last[inside]], 0, length - 1), block, length)


def in_grid(layout: TokenLayout, q: Index, k: Index) -> Any:
  """Whether both tokens lie in the grid."""
  return (q >= layout.prefix) & (k >= layout.prefix)


def coordinates(layout: TokenLayout, index: Index) -> list[Index]:
  """The grid coordinates of tokens, one array for each axis; meaningless for prefix tokens."""
  position, result = index - layout.prefix, []
  for extent in reversed(layout.grid):
    result.append(position % extent)
    position = position // extent
  return result[::-1]


@dataclasses.dataclass(frozen=True)
class Combination(Pattern):
  """Several patterns that act together."""

  patterns: tuple[Pattern, ...]

  def __post_init__(self):
    if not self.patterns:
      raise ConfigError(f"{type(self).__name__}(()): give at least one pattern")
    object.__setattr__(self, "patterns", tuple(self.patterns))

  @property
  def head_period(self) -> int:
    return math.lcm(*(pattern.head_period for pattern in self.patterns))

  @property
  def on_grid(self) -> bool:
    return all(pattern.on_grid for pattern in self.patterns)

  def at(self, layer: int) -> Pattern:
    return type(self)(tuple(pattern.at(layer) for pattern in self.patterns))


@dataclasses.dataclass(frozen=True)
class Union(Combination):
  """The edges of any of the patterns."""

  def allows(self, layout, q, k, head=0):
    parts = [pattern.allows(layout, q, k, head) for pattern in self.patterns]
    return functools.reduce(lambda a, b: a | b, parts)

  def candidates(self, layout, first, last, block, head):
    parts = []
    for pattern in self.patterns:
      part = pattern.candidates(layout, first, last, block, head)
      if part is None:
        return None
      parts.append(part)
    return np.unique(np.concatenate(parts))


@dataclasses.dataclass(frozen=True)
class Intersection(Combination):
  """The edges of all the patterns."""

  def allows(self, layout, q, k, head=0):
    parts = [pattern.allows(layout, q, k, head) for pattern in self.patterns]
    return functools.reduce(lambda a, b: a & b, parts)

  def candidates(self, layout, first, last, block, head):
    parts = [p.candidates(layout, first, last, block, head) for p in self.patterns]
    known = [part for part in parts if part is not None]
    return functools.reduce(np.intersect1d, known) if known else None


@dataclasses.dataclass(frozen=True)
class PerHead(Combination):
  """Head h has the edges of pattern h mod P."""

  @property
  def head_period(self) -> int:
    return math.lcm(len(self.patterns), super().head_period)

  def allows(self, layout, q, k, head=0):
    turn = head % len(self.patterns)
    parts = [
      (turn == i) & pattern.allows(layout, q, k, head) for i, pattern in enumerate(self.patterns)
    ]
    return functools.reduce(lambda a, b: a | b, parts)

  def candidates(self, layout, first, last, block, head):
    pattern = self.patterns[head % len(self.patterns)]
    return pattern.candidates(layout, first, last, block, head)


@dataclasses.dataclass(frozen=True)
class Cycle(Combination):
  """Layer l has the edges of pattern l mod P; has no edges of its own before `at(layer)`."""

  def at(self, layer: int) -> Pattern:
    return self.patterns[layer % len(self.patterns)].at(layer)

  def allows(self, layout, q, k, head=0):
    raise ConfigError("a cycle of patterns has edges only in a layer: use pattern.at(layer)")


@dataclasses.dataclass(frozen=True)
class OnGrid(Pattern):
  """A pattern over the grid alone, as if no prefix tokens stood in front; they have no edges here.

  Attributes:
    pattern: of the grid.
  """

  pattern: Pattern

  @property
  def head_period(self) -> int:
    return self.pattern.head_period

  @property
  def on_grid(self) -> bool:
    return True

  def at(self, layer: int) -> Pattern:
    return OnGrid(self.pattern.at(layer))

  def allows(self, layout, q, k, head=0):
    inside, P = in_grid(layout, q, k), layout.prefix
    xp = namespace(q, k)
    q, k = xp.maximum(q - P, 0), xp.maximum(k - P, 0)
    return inside & self.pattern.allows(TokenLayout(layout.grid), q, k, head)

  def candidates(self, layout, first, last, block, head):
    P = layout.prefix
    if last < P:
      return np.arange(0)
    grid = TokenLayout(layout.grid)
    found = self.pattern.candidates(grid, max(first - P, 0), last - P, block, head)
    if found is None or P == 0:
      return found
    return blocks_of_runs(found * block + P, (found + 1) * block - 1 + P, block, layout.length)


def per_head(*patterns: Pattern) -> Pattern:
  """One pattern for each head; with fewer patterns than heads they repeat."""
  return PerHead(patterns)


def cycle(*patterns: Pattern) -> Pattern:
  """One pattern for each layer; with fewer patterns than layers they repeat.

  Repeat an argument for a ratio: `cycle(strided, local, local, local)` is OpenAI's 1:3.
  """
  return Cycle(patterns)
