"""BigBird's pattern with random blocks that are drawn while tracing, for example at every step."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Intersection, OnGrid, Pattern, Union
from vitx.ops.patterns.bigbird_blocks import GivenBlocks, RandomBlocks


def redraw_blocks(pattern: Pattern, layout: TokenLayout, seed: Any) -> Pattern:
  """Draws new random blocks for a pattern that `bigbird` made.

  The pattern may also be inside `OnGrid`, or limited by `QueryParts`.

  Args:
    pattern: The pattern of one layer.
    layout: The layout of the N tokens.
    seed: An integer, which may be traced; the draw is a function of (seed, layer, head).

  Returns:
    The pattern with `GivenBlocks` in place of the random blocks. The new blocks contain no edges
    that the rest of the pattern has.
  """
  if isinstance(pattern, OnGrid):
    return OnGrid(redraw_blocks(pattern.pattern, TokenLayout(layout.grid), seed))
  parts = pattern.patterns if isinstance(pattern, Intersection) else (pattern,)
  whole: Any = parts[0]
  limits = parts[1:]
  members = whole.patterns
  random = [member for member in members if isinstance(member, RandomBlocks)]
  others = [member for member in members if not isinstance(member, RandomBlocks)]
  others = [Intersection((member, *limits)) for member in others] if limits else others
  drawn = []
  for member in random:
    indices = jnp.asarray(member.redraw(layout, seed, 0))
    # All members consist of whole blocks, so the first tokens of two blocks decide for both.
    row = np.arange(indices.shape[1])[:, None] * member.block
    head = np.arange(indices.shape[0])[:, None, None]
    key = jnp.maximum(indices, 0) * member.block
    legal = indices >= 0
    for limit in limits:
      legal &= limit.allows(layout, row, key, head)
    for other in others:
      legal &= ~other.allows(layout, row, key, head)
    drawn.append(GivenBlocks(jnp.where(legal, indices, -1), member.block))
  return Union((*others, *drawn))
