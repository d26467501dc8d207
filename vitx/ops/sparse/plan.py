"""Plans how the kernelized path computes attention along a pattern without the N x N matrix.

A plan divides the edges into parts. Each part has an order of the tokens in which its edges are
dense blocks.
"""

import dataclasses
from typing import Literal

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Intersection, OnGrid, Pattern, Union
from vitx.ops.patterns.local import Causal, Full, Global, Nothing
from vitx.ops.patterns.parts import Part
from vitx.ops.sparse.block_mask import remember
from vitx.ops.sparse.tiles import TILES, Heads, cost

CLASS = Global(prefix=True)
# Tokens are reordered for a GPU's kernel if that leaves less than this share of the work. The share
# is a guess: reordering tokens and merging parts take time too, which nobody has measured on a GPU.
FEWER = 0.7


@dataclasses.dataclass(frozen=True)
class SparsePlan:
  """A plan: the parts by which the kernelized path computes attention along a pattern.

  Attributes:
    layout: The layout of the tokens of the parts.
    heads: The parts of P heads: head h has the disjoint parts `heads[h % P]`, whose results are
      merged.
    prefix: The number of tokens in front of those in `layout`. Their edges are computed separately.
    prefix_kind: The kind of the prefix. "global": it attends all tokens and all attend it;
      "causal": in addition, no token attends later ones; "apart": it has no edges.
  """

  layout: TokenLayout
  heads: Heads
  prefix: int = 0
  prefix_kind: Literal["global", "causal", "apart"] = "apart"

  @property
  def family(self) -> str:
    """Returns the family of the plan, a key of `vitx.ops.rule.FAMILIES`.

    It is "dense" if a single run (see `Part`) has all tokens, "pattern_runs" if there are other
    runs, and "pattern_blocks" if there are none.
    """
    parts = [part for head_parts in self.heads for part in head_parts]
    runs = [part for part in parts if part.core == "block_diagonal"]
    if not runs:
      return "pattern_blocks"
    is_dense = runs == parts and all(part.block >= self.layout.length for part in parts)
    return "dense" if is_dense else "pattern_runs"


def plan(
  pattern: Pattern, layout: TokenLayout, tile: int | None = None, *, most: int | None = None
) -> SparsePlan:
  """Returns the plan of the kernelized path along a pattern.

  Args:
    pattern: The pattern of one layer.
    layout: The layout of the N tokens.
    tile: The number of tokens in a block, which does not change the result of attention; `None`
      for the cheapest.
    most: The largest number of tokens in a block of the GPU's kernel; `None` if XLA computes the
      attention. The kernel takes edges that are known before the call as blocks only, not as runs.
  """
  pattern = _simplify(pattern, layout)
  split = _split_prefix(pattern, layout)
  if split is None:
    return SparsePlan(layout, _by_head(pattern, layout, tile, most))
  grid = TokenLayout(layout.grid)
  return SparsePlan(grid, _by_head(split[0], grid, tile, most), layout.prefix, split[1])


def _simplify(pattern: Pattern, layout: TokenLayout) -> Pattern:
  """Replaces every union that contains `Full` by `Full`, to show that the attention is dense."""
  if isinstance(pattern, Intersection):
    return Intersection(tuple(_simplify(member, layout) for member in pattern.patterns))
  joined = isinstance(pattern, Union) and Full() in pattern.members(layout)
  return Full() if joined else pattern


def _split_prefix(
  pattern: Pattern, layout: TokenLayout
) -> tuple[Pattern, Literal["global", "causal", "apart"]] | None:
  """Returns the pattern of the grid alone and the kind of the prefix (see `merge.with_prefix`).

  The result is `None` if the pattern cannot be split.
  """
  if isinstance(pattern, Intersection) and pattern.patterns[1:] == (Causal(),):
    split = _split_prefix(pattern.patterns[0], layout)
    if split is None:
      return None
    grid, limited = split
    return grid & Causal(), "causal" if limited == "global" else limited
  members = pattern.members(layout) if isinstance(pattern, Union) else [pattern]
  rest = [member for member in members if member != CLASS]
  if layout.prefix and not all(member.on_grid for member in rest):
    return None
  kind: Literal["global", "apart"] = "global" if len(rest) < len(members) else "apart"
  rest = [member.pattern if isinstance(member, OnGrid) else member for member in rest]
  return (rest[0] if len(rest) == 1 else Union((*rest,)) if rest else Nothing()), kind


def _by_head(pattern: Pattern, layout: TokenLayout, tile: int | None, most: int | None) -> Heads:
  if most and not pattern.is_drawn:
    return _pick_fewest_blocks(pattern, layout, min(tile or most, most))
  if tile or pattern.is_drawn:
    return _split(pattern, layout, tile or pattern.tile or max(TILES))
  return _pick_cheapest(pattern, layout)


@remember(256)
def _pick_cheapest(pattern: Pattern, layout: TokenLayout) -> Heads:
  """Returns the parts for the tile size of lowest cost."""
  preferred = [] if pattern.tile is None else [pattern.tile]
  ways = [_split(pattern, layout, tile) for tile in sorted({*TILES, *preferred}, reverse=True)]
  if all(part.core == "block_sparse" and part.order for parts in ways[0] for part in parts):
    ways.append(((Part(pattern, "block_sparse", max(TILES)),),))  # the usual order suits any edges
  return ways[0] if len({*ways}) == 1 else min(ways, key=lambda way: cost(way, layout))


@remember(256)
def _pick_fewest_blocks(pattern: Pattern, layout: TokenLayout, tile: int) -> Heads:
  """Returns parts for a kernel with blocks of `tile` tokens, reordered only if that saves work."""

  def by_blocks(part: Part) -> Part:
    by_kernel = part.core in ("block_sparse", "block_diagonal")
    return Part(part.pattern, "block_sparse", tile, part.order) if by_kernel else part

  whole: Heads = ((Part(pattern, "block_sparse", tile),),)
  parts = tuple(tuple(map(by_blocks, head_parts)) for head_parts in _split(pattern, layout, tile))
  return parts if cost(parts, layout) < FEWER * cost(whole, layout) else whole


def _split(pattern: Pattern, layout: TokenLayout, tile: int) -> Heads:
  heads = pattern.by_head()
  if heads != (pattern,) and all(head.head_period == 1 for head in heads):
    split = tuple(head.split(layout, tile) for head in heads)
    # Blocks in the usual order need no split by head: one part can have heads with different edges.
    if any(part.is_reordered for parts in split for part in parts):
      return split
  return (pattern.split(layout, tile),)
