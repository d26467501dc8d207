"""The base class of attention patterns, and the combinations of patterns.

A pattern is a set of edges (query, key), defined by an elementwise predicate on index arrays.
Everything else (masks, block lists, counts, pictures) is derived from the predicate. A pattern of
your own is a frozen dataclass with the method `allows`. Two methods are optional: `candidates`
makes the pattern cheap to evaluate over many tokens, and `permutation` makes attention fast if
some order of the tokens brings tokens with a common edge close together.
"""

import dataclasses
import functools
import math
import operator
from typing import Any

import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.indices import Blocks, Index, blocks_of_runs, distinct, in_grid, namespace
from vitx.ops.patterns.parts import Part, as_order


@dataclasses.dataclass(frozen=True)
class Pattern:
  """A set of edges (query, key) over tokens; `|`, `&`, `per_head` and `cycle` combine patterns.

  A pattern is hashable. A class with arrays as fields is `dataclasses.dataclass(frozen=True,
  eq=False)`, since arrays have no hash.
  """

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    """Returns whether query token `q` may attend key token `k`.

    Args:
      layout: The layout of the N tokens.
      q, k: Token indices in 0 ... N-1, prefix tokens first; any shapes that broadcast.
      head: Head indices, broadcastable to `q` and `k`.

    Returns:
      A boolean array, broadcastable to the common shape of `q`, `k` and `head`; NumPy or JAX like
      the indices.
    """
    raise NotImplementedError

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    """Returns key blocks that together contain every key of the queries `first ... last`.

    Args:
      layout: The layout of the N tokens.
      first, last: The first and the last query token, both inclusive.
      block: The number b of tokens in a block.
      head: The index of one head.

    Returns:
      The indices of key blocks, sorted, without repeats; some blocks may contain no key of these
      queries. `None` if every block is a candidate.
    """
    return None

  def permutation(self, layout: TokenLayout) -> np.ndarray | None:
    """Returns an order of the tokens that brings tokens with a common edge close together.

    In that order fewer blocks contain edges, so the kernelized path reorders the tokens. If the
    order is a reshape and a transposition of the tokens, this needs no gather.

    Args:
      layout: The layout of the N tokens.

    Returns:
      The token at each place, int (N,), or a longer array in which numbers from N on are padding.
      `None` for the usual order.
    """
    return None

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    """Returns parts of this pattern, which have no common edges and together have all its edges.

    The kernelized path computes the attention of one part after another and merges the outputs.

    Args:
      layout: The layout of the N tokens.
      tile: The number of tokens in a block, for parts whose block size the pattern does not fix.
    """
    order = as_order(self.permutation(layout), layout.length)
    return (Part(self, "block_sparse", tile, order),)

  def restrict(self, part: Part, layout: TokenLayout) -> Part | None:
    """Returns a part of another pattern, limited to the edges that this pattern has too.

    The result is `None` if the method of the part, `Part.core`, cannot attend exactly these edges.
    """
    if part.core != "block_sparse":
      return None
    return dataclasses.replace(part, pattern=Intersection((part.pattern, self)))

  def by_head(self) -> tuple["Pattern", ...]:
    """Returns P patterns: this pattern and pattern h mod P have equal edges in head h."""
    return (self,)

  @property
  def tile(self) -> int | None:
    """Returns a tile size, in tokens, that fits the pattern's own blocks; `None` if it has none.

    The functions of `vitx.ops.sparse.plan` try it besides the usual sizes.
    """
    return None

  def grain(self, layout: TokenLayout) -> int:
    """Returns a number b: between any two blocks of b tokens, there are all edges or none.

    Blocks are counted from token 0; the last may be short. One pair of tokens then decides for its
    two blocks, so b² - 1 other pairs need no evaluation. The number is 1 if no other is known.

    Args:
      layout: The layout of the N tokens.
    """
    return 1

  @property
  def is_drawn(self) -> bool:
    """Returns whether the edges are known only at run time, such as edges that each step draws."""
    return False

  @property
  def is_fixed(self) -> bool:
    """Returns whether equal patterns always have equal edges, so that results may be cached.

    This is true of the patterns in vitx: their fields define their edges. A class outside vitx may
    depend on values that change: a global, an array, a notebook cell that runs again.
    """
    return type(self).__module__.partition(".")[0] == "vitx"

  @property
  def head_period(self) -> int:
    """Returns the number P of heads after which edges repeat; 1 if all heads have equal edges."""
    return 1

  @property
  def on_grid(self) -> bool:
    """Returns whether prefix tokens have no edges and do not change the edges of the grid."""
    return False

  def at(self, layer: int) -> "Pattern":
    """Returns the pattern of one layer.

    Cycles are replaced by their pattern for this layer, and random graphs by this layer's draw.
    """
    return self

  def __or__(self, other: "Pattern") -> "Union":
    return Union((self, other))

  def __and__(self, other: "Pattern") -> "Intersection":
    return Intersection((self, other))


class Drawn(Pattern):
  """The base class of random graphs, whose draw depends on a head, a seed and a layer."""

  heads: int
  layer: int

  @property
  def head_period(self) -> int:
    return self.heads

  def at(self, layer: int) -> Pattern:
    return dataclasses.replace(self, layer=layer)  # type: ignore[call-arg]


class Blocked(Pattern):
  """The base class of patterns over blocks of `block` tokens."""

  block: int

  @property
  def tile(self) -> int | None:
    """Returns the smallest multiple of `block` that is at least 16; `None` if `block` is 1."""
    return None if self.block == 1 else self.block * -(-16 // self.block)

  def grain(self, layout: TokenLayout) -> int:
    return self.block


class Composite(Pattern):
  """The base class of patterns that are made of other patterns."""

  patterns: tuple[Pattern, ...]

  @property
  def is_fixed(self) -> bool:
    return super().is_fixed and all(pattern.is_fixed for pattern in self.patterns)

  @property
  def head_period(self) -> int:
    return math.lcm(*(pattern.head_period for pattern in self.patterns))

  @property
  def tile(self) -> int | None:
    return min((p.tile for p in self.patterns if p.tile is not None), default=None)

  @property
  def is_drawn(self) -> bool:
    return any(pattern.is_drawn for pattern in self.patterns)


@dataclasses.dataclass(frozen=True)
class Combination(Composite):
  """The base class of patterns that combine several patterns."""

  patterns: tuple[Pattern, ...]

  def __post_init__(self):
    object.__setattr__(self, "patterns", tuple(self.patterns))

  @property
  def on_grid(self) -> bool:
    return all(pattern.on_grid for pattern in self.patterns)

  def grain(self, layout: TokenLayout) -> int:
    return math.gcd(*(pattern.grain(layout) for pattern in self.patterns))

  def at(self, layer: int) -> Pattern:
    return type(self)(tuple(pattern.at(layer) for pattern in self.patterns))


@dataclasses.dataclass(frozen=True)
class Union(Combination):
  """The edges that at least one of the patterns has.

  A pattern whose edges are known only at run time must share no edge with the others.
  """

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    return functools.reduce(operator.or_, [p.allows(layout, q, k, head) for p in self.patterns])

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    parts = [p.candidates(layout, first, last, block, head) for p in self.patterns]
    known = [part for part in parts if part is not None]
    return distinct(known) if len(known) == len(parts) else None

  def members(self, layout: TokenLayout) -> list[Pattern]:
    """Returns the patterns of the union, and of the unions nested in it."""
    return [inner for pattern in self.patterns for inner in _members(pattern, layout)]

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    members = self.members(layout)
    drawn = [member for member in members if member.is_drawn]
    static = [member for member in members if not member.is_drawn]
    parts = [part for member in drawn for part in member.split(layout, tile)]
    if len(static) == 1:
      parts.extend(static[0].split(layout, tile))
    elif static:
      parts.append(Part(Union(tuple(static)), "block_sparse", tile))
    return tuple(parts)


def _members(pattern: Pattern, layout: TokenLayout) -> list[Pattern]:
  if isinstance(pattern, OnGrid) and not layout.prefix:
    return _members(pattern.pattern, layout)
  return pattern.members(layout) if isinstance(pattern, Union) else [pattern]


@dataclasses.dataclass(frozen=True)
class Intersection(Combination):
  """The edges that all the patterns have."""

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    return functools.reduce(operator.and_, [p.allows(layout, q, k, head) for p in self.patterns])

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    parts = [p.candidates(layout, first, last, block, head) for p in self.patterns]
    known = [part for part in parts if part is not None]
    common = functools.partial(np.intersect1d, assume_unique=True)
    return functools.reduce(common, known) if known else None

  def by_head(self) -> tuple[Pattern, ...]:
    counts = [p.by_head() for p in self.patterns]
    heads = math.lcm(*(len(patterns) for patterns in counts))
    return tuple(Intersection(tuple(ps[h % len(ps)] for ps in counts)) for h in range(heads))

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    whole, *limits = self.patterns
    if whole.is_drawn or any(limit.head_period > 1 for limit in limits):
      return super().split(layout, tile)
    parts = whole.split(layout, tile)
    for limit in limits:
      limited = [limit.restrict(part, layout) for part in parts]
      if not all(limited):  # blocks in the usual order can represent any edges
        return super().split(layout, tile)
      parts = tuple(part for part in limited if part is not None)
    return parts


@dataclasses.dataclass(frozen=True)
class PerHead(Combination):
  """A pattern for each head: of P patterns, head h has the edges of pattern h mod P."""

  @property
  def head_period(self) -> int:
    return math.lcm(len(self.patterns), super().head_period)

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    turn = head % len(self.patterns)
    edges = [(turn == i) & p.allows(layout, q, k, head) for i, p in enumerate(self.patterns)]
    return functools.reduce(operator.or_, edges)

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    pattern = self.patterns[head % len(self.patterns)]
    return pattern.candidates(layout, first, last, block, head)

  def by_head(self) -> tuple[Pattern, ...]:
    members = [pattern.by_head() for pattern in self.patterns]
    heads = math.lcm(len(members), *(len(patterns) for patterns in members))
    by_head = (members[head % len(members)] for head in range(heads))
    return tuple(patterns[head % len(patterns)] for head, patterns in enumerate(by_head))


@dataclasses.dataclass(frozen=True)
class Cycle(Combination):
  """A pattern for each layer: of P patterns, layer l has the edges of pattern l mod P.

  `at(l)` returns the pattern of layer l.
  """

  def at(self, layer: int) -> Pattern:
    return self.patterns[layer % len(self.patterns)].at(layer)


@dataclasses.dataclass(frozen=True)
class OnGrid(Composite):
  """A pattern over the grid alone, in which prefix tokens have no edges and no positions.

  Attributes:
    pattern: The pattern of the grid.
  """

  on_grid = True

  pattern: Pattern

  @property
  def patterns(self) -> tuple[Pattern, ...]:  # type: ignore[override]
    """Returns the one pattern that this pattern is made of."""
    return (self.pattern,)

  def grain(self, layout: TokenLayout) -> int:
    return 1 if layout.prefix else self.pattern.grain(layout)

  def at(self, layer: int) -> Pattern:
    return OnGrid(self.pattern.at(layer))

  def by_head(self) -> tuple[Pattern, ...]:
    return tuple(OnGrid(pattern) for pattern in self.pattern.by_head())

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    return super().split(layout, tile) if layout.prefix else self.pattern.split(layout, tile)

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    inside, P = in_grid(layout, q, k), layout.prefix
    xp = namespace(q, k)
    q, k = xp.maximum(q - P, 0), xp.maximum(k - P, 0)
    return inside & self.pattern.allows(TokenLayout(layout.grid), q, k, head)

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    P = layout.prefix
    if last < P:
      return np.arange(0)
    grid = TokenLayout(layout.grid)
    blocks = self.pattern.candidates(grid, max(first - P, 0), last - P, block, head)
    if blocks is None or P == 0:
      return blocks
    return blocks_of_runs(blocks * block + P, (blocks + 1) * block - 1 + P, block, layout.length)


def per_head(*patterns: Pattern) -> Pattern:
  """Gives each head a pattern of its own; if there are fewer patterns than heads, they repeat."""
  return PerHead(patterns)


def cycle(*patterns: Pattern) -> Pattern:
  """Gives each layer a pattern of its own; if there are fewer patterns than layers, they repeat.

  Repeat an argument for a ratio: `cycle(strided, local, local, local)` is OpenAI's 1:3.
  """
  return Cycle(patterns)
