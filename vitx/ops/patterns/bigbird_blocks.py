"""BigBird's patterns of blocks (Zaheer et al. 2020, section 2, appendix D), and BBViT's variants.

Blocks are runs of b tokens, counted from token 0 with the class token included, as published. The
last block is short if b does not divide N.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from vitx.config.checks import check_choice
from vitx.config.errors import ConfigError, listing
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Blocked, Drawn, Pattern, Union
from vitx.ops.patterns.bigbird_draws import draw
from vitx.ops.patterns.indices import Blocks, Index, blocks_between, distinct, namespace
from vitx.ops.patterns.local import Global, Window
from vitx.ops.patterns.parts import Part

PARTS = ("random", "window", "global")
VARIANTS = ("R", "W", "G", "R+W", "W+G", "R+G", "R+W+G")


@dataclasses.dataclass(frozen=True)
class RandomBlocks(Blocked, Drawn):
  """A pattern in which every query block attends `count` random key blocks.

  Attributes:
    count: The number r of random key blocks.
    block: The number b of tokens in a block.
    plan: The rule of the draw: "uniform" over all key blocks, or "bigbird" as in the released code.
    heads: The number of different draws; head h has draw h mod `heads`.
    seed, layer: The integers that determine the draw; `at(layer)` sets the layer.
    window: The width in blocks of the window around a query block from which "uniform" does not
      draw; 0 excludes the query block only.
    anchors: The global blocks, which "uniform" does not draw. As query blocks they draw nothing.
  """

  count: int = 3
  block: int = 64
  plan: str = "uniform"
  heads: int = 1
  seed: int = 0
  layer: int = 0
  window: int = 0
  anchors: tuple[int, ...] = ()

  def indices(self, layout: TokenLayout) -> np.ndarray:
    """Returns the key blocks that m query blocks drew, int32 (heads, m, r), filled up with -1."""
    return _draw_static(self, layout.length)

  def redraw(self, layout: TokenLayout, seed: Any, step: Any) -> Any:
    """Draws new key blocks for one training step; seed and step may be traced.

    The result has the form of `indices`: int32 (heads, m, r), filled up with -1.
    """
    return draw(
      layout.length,
      self.block,
      self.count,
      heads=self.heads,
      plan=self.plan,
      seed=seed,
      step=step,
      layer=self.layer,
      window=self.window,
      anchors=self.anchors,
    )

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    return GivenBlocks(self.indices(layout), self.block).allows(layout, q, k, head)

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    drawn = GivenBlocks(self.indices(layout), self.block)
    return drawn.candidates(layout, first, last, block, head)


@functools.lru_cache(maxsize=256)
def _draw_static(pattern: RandomBlocks, length: int) -> np.ndarray:
  indices = pattern.redraw(TokenLayout((length,)), pattern.seed, 0)
  indices.flags.writeable = False
  return indices


@dataclasses.dataclass(frozen=True, eq=False)
class GivenBlocks(Blocked):
  """A pattern in which every query block attends the key blocks of an array, which may be traced.

  Attributes:
    indices: The key blocks of m query blocks, int (heads, m, r); -1 fills lists shorter than r.
    block: The number b of tokens in a block.
  """

  indices: Any
  block: int

  @property
  def head_period(self) -> int:
    return self.indices.shape[0]

  @property
  def is_drawn(self) -> bool:
    return isinstance(self.indices, jax.Array)

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    if not self.is_drawn:
      return super().split(layout, tile)
    return (Part(self, "drawn", self.block),)

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    table = namespace(self.indices, q, k, head).asarray(self.indices)
    head, row, key = head % table.shape[0], q // self.block, k // self.block
    edges = (q < 0) & (k < 0)
    for column in range(table.shape[-1]):
      edges = edges | (table[head, row, column] == key)
    return edges

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    rows = self.indices[head % len(self.indices), first // self.block : last // self.block + 1]
    parts = [
      blocks_between(key * self.block, (key + 1) * self.block - 1, block, layout.length)
      for key in set(rows[rows >= 0].tolist())
    ]
    return distinct(parts)


@dataclasses.dataclass(frozen=True)
class QueryParts(Pattern):
  """A pattern in which only the queries of the enabled parts attend.

  The names of the parts are the flags in the code of BBViT's authors. Of m query blocks, "random"
  is block 0, "window" is blocks 1 ... m-2, and "global" is block m-1. Intersect this pattern with
  full BigBird. A query block outside the enabled parts attends nothing, so its output is zero.

  Attributes:
    parts: The enabled parts.
    block: The number b of tokens in a block.
  """

  parts: tuple[str, ...] = PARTS
  block: int = 10

  def __post_init__(self):
    for part in self.parts:
      check_choice(part, "QueryParts.parts", PARTS)

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    row, m = q // self.block, -(-layout.length // self.block)
    edges = (q < 0) & (k < 0)
    if "random" in self.parts:
      edges = edges | (row == 0)
    if "window" in self.parts:
      edges = edges | ((row > 0) & (row < m - 1))
    if "global" in self.parts:
      edges = edges | ((row == m - 1) & (m > 1))
    return edges & (k >= 0)

  def grain(self, layout: TokenLayout) -> int:
    return self.block

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    tokens = np.arange(first, last + 1)
    return None if self.allows(layout, tokens, tokens).any() else np.arange(0)


def bigbird(
  variant: str = "R+W+G",
  *,
  block: int = 64,
  window: int = 3,
  random: int = 3,
  global_blocks: tuple[int, ...] = (0, -1),
  keep_self: bool = True,
  plan: str = "uniform",
  heads: int = 1,
  seed: int = 0,
) -> Pattern:
  """Returns a union of BigBird's building blocks.

  Args:
    variant: Any of "R" (random), "W" (window) and "G" (global), joined by "+".
    block: The number b of tokens in a block.
    window: The odd number of blocks in the window, the query's own block included.
    random: The number r of random key blocks of a query block. With the plan "uniform" they are not
      among the other blocks of the union.
    global_blocks: The indices of the global blocks; negative ones count from the end. In BigBird's
      internal construction they are the two ends.
    keep_self: Whether a query attends its own block even if the variant has no window.
    plan: The rule of the random draw, "uniform" or "bigbird".
    heads: The number of different random draws, usually H.
    seed: The seed of the random draw, which also differs by layer.
  """
  letters = variant.split("+")
  if not set(letters) <= {"R", "W", "G"} or len(set(letters)) != len(letters):
    raise ConfigError(f"variant={variant!r} is unknown. Valid: {listing(VARIANTS)}.")
  if window < 1 or window % 2 == 0:
    raise ConfigError(f"window={window} must be odd and positive, such as 3.")
  parts: list[Pattern] = []
  if "W" in letters or keep_self:
    radius = window // 2 if "W" in letters else 0
    parts.append(Window(radius, block=block, count_prefix=True))
  if "G" in letters:
    parts.append(Global(blocks=global_blocks, block=block))
  if "R" in letters:
    avoid = window if "W" in letters else 0
    anchors = global_blocks if "G" in letters else ()
    parts.append(RandomBlocks(random, block, plan, heads, seed, 0, avoid, anchors))
  return Union(tuple(parts))
