"""Computes attention along a plan, part by part, with work in proportion to the edges.

A plan divides the edges of a pattern into parts. The attention of each part is computed by a method
of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.kernels import tiling
from vitx.ops.kernels.flash import flash_attention
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Pattern
from vitx.ops.patterns.parts import Order, Part
from vitx.ops.shapes import Array, Bool, Float
from vitx.ops.sparse.block_mask import BlockMask, remember
from vitx.ops.sparse.block_sparse import block_sparse_attention, block_sparse_attention_dynamic
from vitx.ops.sparse.merge import Partial, merge, with_prefix
from vitx.ops.sparse.permute import attend_in_order, in_order
from vitx.ops.sparse.plan import SparsePlan


@remember(64)
def block_mask(
  pattern: Pattern, layout: TokenLayout, tile: int, num_heads: int, order: Order | None = None
) -> BlockMask:
  """Returns the block mask of a pattern, for tokens in a given order.

  The masks are cached, because the layers of a model share a few of them.

  Args:
    pattern: The pattern of one layer.
    layout: The layout of the N tokens.
    tile: The number of tokens in a block.
    num_heads: The number of heads H.
    order: The order of the tokens; `None` for the usual one.
  """
  return BlockMask.from_pattern(*in_order(pattern, layout, order), tile, num_heads)


def attend(
  plan: SparsePlan,
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H E"],
  *,
  key_mask: Bool[Array, "B N"] | None = None,
  scale: float | None = None,
) -> Partial:
  """Computes softmax(q kᵀ · scale) v over the edges of a plan.

  Args:
    plan: The plan for the N tokens.
    q, k: The queries and the keys, (B, N, H, D).
    v: The values, (B, N, H, E).
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).

  Returns:
    The output (B, N, H, E) in the dtype of `v`, and lse (B, H, N) in float32, the logarithm of each
    query's sum of exponentials. A query without edges has output 0, lse -inf and no gradient.
  """
  grid, kind = partial(_attend_by_head, plan), plan.prefix_kind
  return with_prefix(grid, q, k, v, prefix=plan.prefix, kind=kind, key_mask=key_mask, scale=scale)


def _attend_by_head(plan: SparsePlan, q, k, v, **arguments: Any) -> Partial:
  """Computes the plan's attention over the grid, for one group of heads after another.

  The heads of a group have equal parts, so one call serves all of them.
  """
  if all(parts == plan.heads[0] for parts in plan.heads):
    return _merge_parts(plan.heads[0], plan.layout, q, k, v, arguments)
  heads = np.arange(q.shape[2])
  turn = np.array([plan.heads.index(plan.heads[h % len(plan.heads)]) for h in heads])
  outs, lses, order = [], [], []
  for number in np.unique(turn):
    group = heads[turn == number]
    # A slice needs no gather.
    index = group if np.any(np.diff(group) > 1) else slice(group[0], group[-1] + 1)
    qkv = [x[:, :, index] for x in (q, k, v)]
    out, lse = _merge_parts(plan.heads[number], plan.layout, qkv[0], qkv[1], qkv[2], arguments)
    outs.append(out)
    lses.append(lse)
    order.append(group)
  back = np.argsort(np.concatenate(order))
  out, lse = jnp.concatenate(outs, axis=2), jnp.concatenate(lses, axis=1)
  return (out, lse) if np.array_equal(back, heads) else (out[:, :, back], lse[:, back])


def _merge_parts(parts: tuple[Part, ...], layout: TokenLayout, q, k, v, arguments) -> Partial:
  results = []
  for part in parts:
    core = partial(CORES[part.core], part, layout, scale=arguments["scale"])
    results.append(attend_in_order(core, part.order, q, k, v, arguments["key_mask"]))
  return results[0] if len(results) == 1 else merge(results)


def _attend_blocks(part: Part, layout: TokenLayout, q, k, v, key_mask, scale) -> Partial:
  mask = block_mask(part.pattern, layout, part.block, q.shape[2], part.order)
  return block_sparse_attention(q, k, v, mask, key_mask=key_mask, scale=scale)


def _attend_drawn(part: Part, layout: TokenLayout, q, k, v, key_mask, scale) -> Partial:
  blocks: Any = part.pattern
  indices, drawn = jnp.maximum(blocks.indices, 0), blocks.indices >= 0
  return block_sparse_attention_dynamic(
    q, k, v, indices, drawn, part.block, key_mask=key_mask, scale=scale
  )


def _attend_runs(part: Part, layout: TokenLayout, q, k, v, key_mask, scale) -> Partial:
  """Computes dense attention inside runs of `part.block` tokens; each run becomes an example."""
  (batch, n), size = q.shape[:2], part.block
  count = -(-n // size)
  attend_run = partial(flash_attention, scale=scale, causal=part.causal, self_edge=part.self_edge)
  if count == 1:
    return attend_run(q, k, v, key_mask=key_mask)

  def runs(x: jax.Array) -> jax.Array:  # (B, N, ...) -> (B·R, b, ...)
    return tiling.split_rows(x, count, size).reshape(batch * count, size, *x.shape[2:])

  def tokens(x: jax.Array) -> jax.Array:
    return tiling.join_rows(x.reshape(batch, count, *x.shape[1:]), n)

  real = layout.length
  if key_mask is None and real < count * size and not part.causal:  # causality hides padding
    places = np.arange(n) if part.order is None else part.order.numbers
    key_mask = jnp.broadcast_to(places < real, (batch, n))
  seen = None if key_mask is None else runs(key_mask)
  q, k, v = map(runs, (q, k, v))
  out, lse = attend_run(q, k, v, key_mask=seen)
  return tokens(out), jnp.swapaxes(tokens(jnp.swapaxes(lse, 1, 2)), 1, 2)


def _attend_summaries(part: Part, layout: TokenLayout, q, k, v, key_mask, scale) -> Partial:
  """Computes attention to the summary tokens of the runs that precede a query's own run."""
  earlier: Any = part.pattern
  fixed, n, size = earlier.fixed, q.shape[1], part.block
  runs, heads = (n - 1) // size, q.shape[2]

  def summaries(x: jax.Array) -> jax.Array:  # (B, N, H, ...) -> (B, runs · c, H, ...)
    x = x[:, : runs * size].reshape(x.shape[0], runs, size, *x.shape[2:])
    turns = range(min(fixed.distinct, heads))
    ends = [size - turn * fixed.summary for turn in turns]
    slices = [x[:, :, end - fixed.summary : end, t :: fixed.distinct] for t, end in enumerate(ends)]
    order = np.concatenate([np.arange(heads)[turn :: fixed.distinct] for turn in turns])
    joined = jnp.concatenate(slices, axis=3)
    if not np.array_equal(order, np.arange(heads)):
      joined = joined[:, :, :, np.argsort(order)]
    return joined.reshape(x.shape[0], runs * fixed.summary, heads, *x.shape[4:])

  seen = None
  if key_mask is not None:
    seen = summaries(jnp.broadcast_to(key_mask[:, :, None], (*key_mask.shape, heads)))
  steps = (size, fixed.summary)  # the second run sees one summary, the third sees two
  out, lse = flash_attention(
    q[:, size:], summaries(k), summaries(v), key_mask=seen, scale=scale, causal=True, steps=steps
  )
  first = [(0, 0), (size, 0)]
  out = jnp.pad(out, [*first, (0, 0), (0, 0)])
  return out, jnp.pad(lse, [(0, 0), *first], constant_values=-jnp.inf)


CORES: dict[str, Callable[..., Partial]] = {
  "block_sparse": _attend_blocks,
  "block_diagonal": _attend_runs,
  "drawn": _attend_drawn,
  "summaries": _attend_summaries,
}
