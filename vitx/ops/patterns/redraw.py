"""BigBird's pattern with random blocks that are drawn while tracing, for example at every step."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Intersection, OnGrid, Pattern, Union
from vitx.ops.patterns.bigbird_blocks import GivenBlocks, RandomBlocks


def redraw_blocks(pattern: Pattern, layout: TokenLayout, seed: Any) -> Pattern:
  """Draws new random blocks for `bigbird(...)`, also on the grid or for some query parts.

  Args:
    pattern: The pattern of one layer.
    layout: The layout of the N tokens.
    seed: An integer, which may be traced; the draw is a function of (seed, layer, head).

  Returns:
    A union with `GivenBlocks` in place of the random blocks; the other members hold none of them.
  """
  if isinstance(pattern, OnGrid):
    return OnGrid(redraw_blocks(pattern.pattern, TokenLayout(layout.grid), seed))
  if isinstance(pattern, Intersection):
    whole, parts = pattern.patterns
    return _redraw(whole, layout, seed, parts)
  return _redraw(pattern, layout, seed, None)


def _redraw(whole: Any, layout: TokenLayout, seed: Any, parts: Pattern | None) -> Pattern:
  random = [member for member in whole.patterns if isinstance(member, RandomBlocks)]
  others = [member for member in whole.patterns if not isinstance(member, RandomBlocks)]
  others = others if parts is None else [member & parts for member in others]
  drawn = []
  for member in random:
    indices = jnp.asarray(member.redraw(layout, seed, 0))
    # All members consist of whole blocks, so the first tokens of two blocks decide for both.
    row = np.arange(indices.shape[1])[:, None] * member.block
    head = np.arange(indices.shape[0])[:, None, None]
    key = jnp.maximum(indices, 0) * member.block
    legal = indices >= 0
    if parts is not None:
      legal &= parts.allows(layout, row, key, head)
    for other in others:
      legal &= ~other.allows(layout, row, key, head)
    drawn.append(GivenBlocks(jnp.where(legal, indices, -1), member.block))
  return Union((*others, *drawn))
