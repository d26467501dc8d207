"""Patterns over a sequence: all tokens, no tokens, earlier tokens, windows, and global tokens."""

import dataclasses
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Blocked, Pattern
from vitx.ops.patterns.indices import (
  Blocks,
  Index,
  blocks_between,
  blocks_of_runs,
  distinct,
  in_grid,
  namespace,
)
from vitx.ops.patterns.parts import Part


@dataclasses.dataclass(frozen=True)
class Full(Pattern):
  """The pattern in which every token attends every token (Vaswani et al. 2017)."""

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    return (q >= 0) & (k >= 0)

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    return (Part(self, "block_diagonal", layout.length),)

  def restrict(self, part: Part, layout: TokenLayout) -> Part | None:
    return part


@dataclasses.dataclass(frozen=True)
class Nothing(Pattern):
  """The pattern without edges: a control without attention, in which only the MLPs are left."""

  on_grid = True

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    return (q < 0) & (k < 0)

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    return np.arange(0)


@dataclasses.dataclass(frozen=True)
class Others(Pattern):
  """The pattern in which every token attends every token except itself (Lee et al. 2021)."""

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    return q != k

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    return (Part(self, "block_diagonal", layout.length, self_edge=False),)

  def restrict(self, part: Part, layout: TokenLayout) -> Part | None:
    if part.core == "summaries":
      return part  # summaries are in earlier runs, so no edge joins a token to itself
    if part.core != "block_diagonal":
      return super().restrict(part, layout)
    return dataclasses.replace(part, pattern=part.pattern & self, self_edge=False)


@dataclasses.dataclass(frozen=True)
class Causal(Pattern):
  """The pattern in which a token attends itself and all earlier tokens; prefix tokens are first."""

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    return k <= q

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    return blocks_between(0, last, block, layout.length)

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    return (Part(self, "block_diagonal", layout.length, causal=True),)

  def restrict(self, part: Part, layout: TokenLayout) -> Part | None:
    if part.core == "summaries":
      return part  # summaries are in earlier runs, so all edges to them are causal
    if part.core != "block_diagonal":
      return super().restrict(part, layout)
    if not _ascends(part):
      return None
    return dataclasses.replace(part, pattern=part.pattern & self, causal=True)


def _ascends(part: Part) -> bool:
  """Returns whether the tokens of each run of a block-diagonal part are in ascending order."""
  numbers = None if part.order is None else part.order.numbers
  return numbers is None or bool(np.all(np.diff(numbers.reshape(-1, part.block)) > 0))


@dataclasses.dataclass(frozen=True)
class Window(Blocked):
  """A sliding window over positions, or over blocks of positions.

  With single positions it is Longformer's window (Beltagy et al. 2020, section 3.1). With blocks it
  is BigBird's window (Zaheer et al. 2020, section 2). `Window(left, 0)` of single positions is
  causal.

  Attributes:
    left: The number of units (blocks of `block` positions) to attend before the query's own.
    right: The number of units to attend after the query's own; `None` for as many as `left`.
    circular: Whether the window wraps around the ends of the sequence.
    block: The number of positions in a unit.
    count_prefix: Whether prefix tokens count as the first positions; otherwise they have no edges.
  """

  left: int
  right: int | None = None
  circular: bool = False
  block: int = 1
  count_prefix: bool = False

  def __post_init__(self):
    if self.left < 0 or (self.right or 0) < 0 or self.block < 1:
      raise ConfigError(f"{self}: left and right must be at least 0, and block at least 1.")

  @property
  def on_grid(self) -> bool:
    return not self.count_prefix

  def grain(self, layout: TokenLayout) -> int:
    return self.block if self.count_prefix or not layout.prefix else 1

  @property
  def _right(self) -> int:
    return self.left if self.right is None else self.right

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    start = 0 if self.count_prefix else layout.prefix
    ahead = (k - start) // self.block - (q - start) // self.block
    if self.circular:
      units = -(-(layout.length - start) // self.block)
      near = (ahead % units <= self._right) | (-ahead % units <= self.left)
    else:
      near = (ahead <= self._right) & (-ahead <= self.left)
    return near if self.count_prefix else near & in_grid(layout, q, k)

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    start, N = 0 if self.count_prefix else layout.prefix, layout.length
    size, units = self.block, -(-(N - start) // self.block)
    low = (max(first, start) - start) // size - self.left
    high = (max(last, start) - start) // size + self._right
    parts = [blocks_between(start + low * size, start + (high + 1) * size - 1, block, N)]
    if self.circular:
      if low < 0:
        parts.append(blocks_between(start + (low + units) * size, N - 1, block, N))
      if high >= units:
        parts.append(blocks_between(start, start + (high - units + 1) * size - 1, block, N))
    return distinct(parts)


@dataclasses.dataclass(frozen=True)
class DilatedWindow(Pattern):
  """A window with gaps: the keys q + d·t, |t| <= radius (Longformer, section 3.1).

  Attributes:
    radius: The number of keys on each side of the query's own.
    dilation: The dilations d of the heads: head h has entry h mod `len(dilation)`.
    causal: Whether a query attends only its own key and earlier ones.
  """

  on_grid = True

  radius: int
  dilation: tuple[int, ...] = (1,)
  causal: bool = False

  def __post_init__(self):
    if self.radius < 0 or min(self.dilation) < 1:
      raise ConfigError(f"{self}: radius must be at least 0, and each dilation at least 1.")

  @property
  def head_period(self) -> int:
    return 1 if len(set(self.dilation)) == 1 else len(self.dilation)

  def by_head(self) -> tuple[Pattern, ...]:
    return tuple(dataclasses.replace(self, dilation=(step,)) for step in self.dilation)

  def permutation(self, layout: TokenLayout) -> np.ndarray | None:
    step = self.dilation[0]
    if layout.prefix or self.head_period > 1 or step == 1 or step >= layout.length:
      return None
    # The order lists one residue class after another: within a class the window has no gaps.
    rows = -(-layout.length // step)
    return np.arange(rows * step).reshape(rows, step).T.ravel()

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    if self.head_period == 1:
      step = self.dilation[0]
    else:
      table = namespace(q, k, head).asarray(self.dilation, dtype="int32")
      step = table[head % len(self.dilation)]
    ahead = k - q
    steps = ahead // step  # the product of radius and step could exceed 32 bits
    near = (ahead % step == 0) & (steps >= -self.radius)
    near = near & (steps <= (0 if self.causal else self.radius))
    return near & in_grid(layout, q, k)

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    first = max(first, layout.prefix)
    step = self.dilation[head % len(self.dilation)]
    if step <= block:
      reach = self.radius * step
      return blocks_between(first - reach, last + reach, block, layout.length)
    shifts = np.arange(-self.radius, self.radius + 1) * step
    return blocks_of_runs(first + shifts, last + shifts, block, layout.length)


@dataclasses.dataclass(frozen=True)
class Global(Blocked):
  """Tokens that attend all tokens and that all tokens attend.

  Global blocks are BigBird's internal construction, learned tokens in front are its extended
  construction (ETC), and tokens given by index are Longformer's global attention (section 3.1).

  Attributes:
    tokens: The indices of tokens in 0 ... N-1; negative ones count from the end.
    blocks: The indices of blocks; negative ones count from the end.
    block: The number of tokens in a block, counted from token 0.
    prefix: Whether the prefix tokens are global.
  """

  tokens: tuple[int, ...] = ()
  blocks: tuple[int, ...] = ()
  block: int = 1
  prefix: bool = False

  def __post_init__(self):
    if not (self.tokens or self.blocks or self.prefix):
      raise ConfigError("Global() names no token. Set tokens, blocks or prefix.")

  def grain(self, layout: TokenLayout) -> int:
    return 1 if self.tokens or (self.prefix and layout.prefix) else self.block

  def spans(self, layout: TokenLayout) -> list[tuple[int, int]]:
    """Returns the first and last token of each run of global tokens."""
    N = layout.length
    R = -(-N // self.block)
    spans = [(0, layout.prefix - 1)] if self.prefix and layout.prefix else []
    spans += [(range(N)[index],) * 2 for index in self.tokens]
    for index in self.blocks:
      first = range(R)[index] * self.block
      spans.append((first, min(first + self.block, N) - 1))
    return spans

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    result = (q < 0) & (k < 0)
    for first, last in self.spans(layout):
      result = result | ((q >= first) & (q <= last)) | ((k >= first) & (k <= last))
    return result

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    spans = self.spans(layout)
    if any(first <= high and low <= last for low, high in spans):
      return None
    parts = [blocks_between(low, high, block, layout.length) for low, high in spans]
    return distinct(parts)
