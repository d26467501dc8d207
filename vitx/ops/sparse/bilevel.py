"""Bi-level routing attention: each region of the grid attends the few regions most similar to it.

(Zhu et al. 2023, section 3.2: region-to-region routing, then token-to-token attention.)
"""

import functools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_and_hide
from vitx.ops.kernels.selection import keep_first
from vitx.ops.kernels.softmax import masked_attention
from vitx.ops.kernels.top_k import kept_mask
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.parts import Order, as_order
from vitx.ops.shapes import Array, Bool, Float, Int
from vitx.ops.sparse.chosen_blocks import attend_chosen
from vitx.ops.sparse.merge import Partial, with_prefix
from vitx.ops.sparse.permute import attend_in_order


@functools.lru_cache(maxsize=64)
def region_numbers(grid: tuple[int, ...], regions: int) -> np.ndarray:
  """Cuts a grid into boxes and numbers the boxes row by row.

  The boxes are equal. Along an axis of g tokens, the extent of a box is ceil(g / S), where S is
  `regions`. Places beyond the grid are padding. Boxes with only padding are left out, so there may
  be fewer than S boxes along an axis.

  Args:
    grid: The extents of the grid.
    regions: The number S of boxes along every axis.

  Returns:
    The b tokens of each of the R boxes (regions), int (R, b), -1 for padding.
  """
  extents = [math.ceil(g / regions) for g in grid]
  counts = [math.ceil(g / e) for g, e in zip(grid, extents, strict=True)]
  padded = [(0, n * e - g) for g, n, e in zip(grid, counts, extents, strict=True)]
  tokens = np.pad(np.arange(math.prod(grid)).reshape(grid), padded, constant_values=-1)
  split = tokens.reshape([x for pair in zip(counts, extents, strict=True) for x in pair])
  axes = len(grid)
  order = [*range(0, 2 * axes, 2), *range(1, 2 * axes, 2)]
  numbers = split.transpose(order).reshape(math.prod(counts), math.prod(extents))
  numbers.flags.writeable = False
  return numbers


@functools.lru_cache(maxsize=64)
def _order(grid: tuple[int, ...], regions: int) -> Order | None:
  """Returns the order of the tokens region by region, padding included."""
  numbers, length = region_numbers(grid, regions).ravel().copy(), math.prod(grid)
  numbers[numbers < 0] = np.arange(length, numbers.size)
  return as_order(numbers, length)


def route(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  numbers: np.ndarray,
  budget: int,
  key_mask: Bool[Array, "B N"] | None = None,
) -> tuple[Int[Array, "B 1 R K"], Bool[Array, "B 1 R K"]]:
  """Returns, for each region, the regions whose mean keys have the largest products with its query.

  A region's query is the mean of its queries. Products are over the channels of all heads, so that
  all heads attend equal regions. The choice has no gradient.

  Args:
    q, k: The queries and the keys of the grid, (B, N, H, D).
    numbers: The tokens of each region from `region_numbers`, int (R, b).
    budget: The number K of regions that a region attends, at most R.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`. Masked tokens do not count
      for the means, and a region with only masked tokens is not attended.

  Returns:
    The regions, int32 (B, 1, R, K), and bool (B, 1, R, K), False where an index only fills the
    array.
  """
  q, k = jax.lax.stop_gradient((q, k))
  H, D = q.shape[2:]
  counts = jnp.asarray(numbers >= 0)[None]
  if key_mask is not None:
    counts = counts & key_mask[:, np.maximum(numbers, 0)]  # (B, R, b)
  total = jnp.maximum(jnp.sum(counts, axis=2, dtype=jnp.float32), 1)[..., None]

  def mean(x: jax.Array) -> jax.Array:  # (B, N, H, D) -> (B, R, H D)
    tokens = x.reshape(*x.shape[:2], H * D)[:, np.maximum(numbers, 0)].astype(jnp.float32)
    return jnp.sum(jnp.where(counts[..., None], tokens, 0), axis=2) / total

  scores = jnp.einsum("brc,bsc->brs", mean(q), mean(k))
  scores = jnp.where(jnp.any(counts, axis=2)[:, None], scores, -jnp.inf)
  indices, valid = keep_first(scores, budget)
  return indices[:, None], valid[:, None]


def bilevel_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H D"],
  indices: Int[Array, "B 1 R K"],
  valid: Bool[Array, "B 1 R K"],
  layout: TokenLayout,
  regions: int,
  *,
  key_mask: Bool[Array, "B N"] | None = None,
  scale: float | None = None,
  implementation: str = "auto",
) -> tuple[Float[Array, "B N H D"], Float[Array, "B H N N"] | None]:
  """Computes softmax(q kᵀ · scale) v over the tokens of the regions that a query's region chose.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D).
    indices, valid: The results of `route`, (B, 1, R, K): the K regions that each of the R regions
      attends, and which of them are valid.
    layout: The layout of the N tokens; a prefix attends all and is attended by all.
    regions: The number S of regions along every axis of the grid.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    implementation: The path to take: "masked", "kernelized" or "auto".

  Returns:
    The output (B, N, H, D) in the dtype of `v`, and on the masked path the probabilities
    (B, H, N, N), else `None`.
  """
  k, v = check_and_hide(q, k, v, key_mask, layout=layout)
  numbers = region_numbers(layout.grid, regions)
  picked = resolve_implementation(implementation, "bilevel", q.shape)
  if picked == "masked":
    chosen = kept_mask(indices, valid, len(numbers))
    region = np.zeros(math.prod(layout.grid), int)  # each token's region
    region[numbers[numbers >= 0]] = np.nonzero(numbers >= 0)[0]
    ahead = [(0, 0), (0, 0), (layout.prefix, 0), (layout.prefix, 0)]
    mask = jnp.pad(chosen[:, :, region][..., region], ahead, constant_values=True)
    return masked_attention(q, k, v, mask=mask, key_mask=key_mask, scale=scale)
  order, size = _order(layout.grid, regions), numbers.shape[1]

  def attend_regions(q, k, v, key_mask, scale) -> Partial:  # in this order a region is a block
    attend = partial(attend_chosen, indices=indices, valid=valid, block=size, scale=scale)
    if key_mask is None and order is not None and order.numbers.size > order.length:
      key_mask = jnp.ones(q.shape[:2], bool)  # the new order adds False for padding
    return attend_in_order(attend, order, q, k, v, key_mask)

  options: dict[str, Any] = {"prefix": layout.prefix, "key_mask": key_mask, "scale": scale}
  return with_prefix(attend_regions, q, k, v, **options)[0], None
