"""Softmax attention along the edges of a pattern: masked, or by the tiles that hold edges."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.kernels.softmax import masked_attention
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import (
  Axial,
  GivenBlocks,
  Global,
  Nothing,
  OnGrid,
  Pattern,
  PerHead,
  Strided,
  Union,
)
from vitx.ops.patterns.base import namespace
from vitx.ops.sparse.block_mask import BlockMask
from vitx.ops.sparse.block_sparse import block_sparse_attention, block_sparse_attention_dynamic
from vitx.ops.sparse.merge import Part, merge, with_prefix
from vitx.ops.sparse.permute import ByPatches, from_patches, patch_sides, to_patches
from vitx.ops.sparse.strided import strided_attention


@functools.lru_cache(maxsize=64)
def block_mask(pattern: Pattern, layout: TokenLayout, tile: int, num_heads: int) -> BlockMask:
  """`BlockMask.from_pattern`, remembered: every layer of a model asks for the same few."""
  return BlockMask.from_pattern(pattern, layout, tile, num_heads)


def dense_mask(pattern: Pattern, layout: TokenLayout, num_heads: int):
  """The edges as an array, for the masked path, tests and pictures.

  Returns:
    bool (G, N, N), True = query may attend key; G is 1 if the heads do not differ, else H. NumPy,
    or JAX for a pattern that was drawn while tracing.
  """
  heads, N = 1 if pattern.head_period == 1 else num_heads, layout.length
  head, q, k = np.ogrid[:heads, :N, :N]
  allowed = pattern.allows(layout, q, k, head)
  return namespace(allowed).broadcast_to(allowed, (heads, N, N))


def masked_pattern_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  pattern: Pattern,
  layout: TokenLayout,
  *,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
  dropout_rate: float = 0.0,
  key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The reference, with the N x N matrix.

  Args:
    q, k: (B, N, H, D).
    v: (B, N, H, E).
    pattern: of this layer.
    layout: of the N tokens.
    key_mask: boolean (B, N), True = may be attended.
    scale: of the logits; none: 1 / sqrt(D).
    dropout_rate: of the probabilities.
    key: for the dropout.

  Returns:
    The output (B, N, H, E) and the probabilities (B, H, N, N) in float32. A query without edges has
    output 0.
  """
  mask = jnp.asarray(dense_mask(pattern, layout, q.shape[2]))[None]
  if key_mask is not None:
    mask = mask & key_mask[:, None, None, :]
  return masked_attention(q, k, v, mask=mask, scale=scale, dropout_rate=dropout_rate, key=key)


def sparse_pattern_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  pattern: Pattern,
  layout: TokenLayout,
  *,
  tile: int = 64,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The same with work and memory in proportion to the tiles that hold edges.

  Global prefix tokens are a dense row and column of their own, which leaves the grid to tiles that
  divide it; columns of the grid are dense attention over the transposed grid; what is near on the
  grid is tiled by patches; blocks that were drawn while tracing are merged with the static rest;
  all else is block-sparse.

  Args:
    tile: tokens in a block of the kernel; any number, the pattern's own block size is best.

  Returns:
    The output (B, N, H, E) and lse (B, H, N), -inf for a query without edges.
  """
  given: dict[str, Any] = {"key_mask": key_mask, "scale": scale}
  grid, members = TokenLayout(layout.grid), _members(pattern, layout)

  def attend(q, k, v, members=members, layout=layout, **given):
    return _attend(q, k, v, members, layout, tile, given)

  rest = [member for member in members if member != Global(prefix=True)]
  if layout.prefix and len(rest) < len(members) and all(member.on_grid for member in rest):
    behind = [inner for member in rest for inner in _members(member, grid)]
    attend_grid = functools.partial(attend, members=behind, layout=grid)
    return with_prefix(attend_grid, q, k, v, prefix=layout.prefix, **given)
  return attend(q, k, v, **given)


def _members(pattern: Pattern, layout: TokenLayout) -> list[Pattern]:
  """Patterns whose union it is, without what says nothing where there is no prefix."""
  if isinstance(pattern, Union):
    return [member for part in pattern.patterns for member in _members(part, layout)]
  if layout.prefix == 0 and isinstance(pattern, OnGrid):
    return _members(pattern.pattern, layout)
  return [] if layout.prefix == 0 and pattern == Global(prefix=True) else [pattern]


def _attend(q, k, v, members: list[Pattern], layout: TokenLayout, tile: int, given: dict) -> Part:
  drawn = [m for m in members if isinstance(m, GivenBlocks) and isinstance(m.indices, jax.Array)]
  static = [member for member in members if not any(member is blocks for blocks in drawn)]
  parts = [_drawn_attention(q, k, v, blocks, given) for blocks in drawn]
  if static or not drawn:
    pattern = static[0] if len(static) == 1 else Union(tuple(static)) if static else Nothing()
    if (strided := _strided(pattern, layout)) is not None:
      parts.append(_strided_by_head(q, k, v, strided, given))
    elif (sides := patch_sides(pattern, layout, tile)) is not None:
      parts.append(_by_patches(q, k, v, pattern, layout, sides, given))
    else:
      mask = block_mask(pattern, layout, tile, q.shape[2])
      parts.append(block_sparse_attention(q, k, v, mask, **given))
  return parts[0] if len(parts) == 1 else merge(parts)


def _drawn_attention(q, k, v, blocks: GivenBlocks, given: dict[str, Any]) -> Part:
  drawn = blocks.indices >= 0
  indices = jnp.maximum(blocks.indices, 0)
  return block_sparse_attention_dynamic(q, k, v, indices, drawn, blocks.block, **given)


def _by_patches(
  q, k, v, pattern: Pattern, layout: TokenLayout, sides: tuple[int, int], given: dict[str, Any]
) -> Part:
  mask = block_mask(ByPatches(pattern, sides), layout, sides[0] * sides[1], q.shape[2])
  q, k, v = (to_patches(x, layout, sides) for x in (q, k, v))
  if (seen := given["key_mask"]) is not None:
    given = {**given, "key_mask": to_patches(seen, layout, sides)}
  out, lse = block_sparse_attention(q, k, v, mask, **given)
  lse = from_patches(jnp.swapaxes(lse, 1, 2), layout, sides)
  return from_patches(out, layout, sides), jnp.swapaxes(lse, 1, 2)


def _strided(pattern: Pattern, layout: TokenLayout) -> list[dict[str, Any]] | None:
  """Arguments of `strided_attention` for each head of a period; none if it does not apply."""
  if layout.prefix:
    return None
  found = []
  for member in pattern.patterns if isinstance(pattern, PerHead) else (pattern,):
    rows = layout.grid[-1]
    if isinstance(member, Strided):
      stride = rows if member.stride is None else member.stride
      found.append({"stride": stride, "form": member.form, "part": member.part})
    elif isinstance(member, Axial) and len(layout.grid) == 2:
      part = "column" if member.axis in (0, -2) else "local"
      found.append({"stride": rows, "form": "axial", "part": part})
    else:
      return None
  return found


def _strided_by_head(q, k, v, settings: list[dict[str, Any]], given: dict[str, Any]) -> Part:
  if all(setting == settings[0] for setting in settings):
    return strided_attention(q, k, v, **settings[0], **given)
  heads = np.arange(q.shape[2])
  turn = np.array([settings.index(settings[h % len(settings)]) for h in heads])
  outs, lses, order = [], [], []
  for number in np.unique(turn):
    group = heads[turn == number]
    own = group if np.any(np.diff(group) > 1) else slice(group[0], group[-1] + 1)  # a slice is free
    part = (x[:, :, own] for x in (q, k, v))
    out, lse = strided_attention(*part, **{**settings[number], **given})
    outs.append(out)
    lses.append(lse)
    order.append(group)
  back = np.argsort(np.concatenate(order))
  out, lse = jnp.concatenate(outs, axis=2), jnp.concatenate(lses, axis=1)
  return (out, lse) if np.array_equal(back, heads) else (out[:, :, back], lse[:, back])
