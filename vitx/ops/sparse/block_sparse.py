"""Block-sparse attention: work and memory in proportion to the blocks that hold edges."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from vitx.ops.kernels import tiling
from vitx.ops.sparse import executor as xla
from vitx.ops.sparse import rows
from vitx.ops.sparse.block_mask import BlockMask


def block_sparse_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: BlockMask,
  *,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Computes softmax(q kᵀ · scale) v over the edges of `mask`.

  Args:
    q, k: The queries and the keys, (B, N, H, D).
    v: The values, (B, N, H, E).
    mask: The static edges; their G is 1 or H.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).

  Returns:
    The output (B, N, H, E) in the dtype of `v`, and lse (B, H, N) float32. A query without edges
    has output 0, lse -inf and no gradient. Both results may be differentiated.

  Raises:
    ValueError: The mask has another length or number of heads.
  """
  _check(q, mask.length, mask.heads, "the mask")
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  return _static(q, k, v, key_mask, mask, scale)


def block_sparse_attention_dynamic(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  indices: jax.Array,
  valid: jax.Array,
  block: int,
  *,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Computes softmax(q kᵀ · scale) v over whole blocks that are known only at run time.

  Args:
    q, k: The queries and the keys, (B, N, H, D).
    v: The values, (B, N, H, E).
    indices: The key blocks that each query block reads, int (G, R, K), R = ceil(N / block), none
      twice; G is 1 or H.
    valid: A mask (G, R, K), False where an index only fills the array.
    block: The number b of tokens in a block.
    key_mask: A boolean mask (B, N) or (B, N, H), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).

  Returns:
    The output (B, N, H, E) in the dtype of `v`, and lse (B, H, N) float32. A query without edges
    has output 0, lse -inf and no gradient. Both results may be differentiated.

  Raises:
    ValueError: The indices fit another length or number of heads.
  """
  G, R, _ = indices.shape
  if -(-q.shape[1] // block) != R:
    raise ValueError(f"indices of {R} query blocks of {block} for {q.shape[1]} tokens")
  _check(q, q.shape[1], G, "indices")
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  return _dynamic(q, k, v, key_mask, indices, valid, block, scale)


def _check(q: jax.Array, length: int, layouts: int, what: str) -> None:
  _, n, heads, _ = q.shape
  if length != n or layouts not in (1, heads):
    raise ValueError(
      f"{what} of {length} tokens and {layouts} layouts for {n} tokens and {heads} heads: build it"
      f" for {n} tokens with 1 or {heads} layouts"
    )


# These two functions choose the lowering. There is one for all platforms: `executor`. A Pallas
# kernel (GPU) or splash attention (TPU) would take the same arrays and static mask here.
def _forward(q, k, v, key_mask, sides, layout: xla.Layout, scale: float):
  out, lse = xla.forward(q, k, v, key_mask, sides[0], layout, scale)
  return out, jnp.swapaxes(lse, 1, 2)


def _backward(saved, cotangents, sides, layout: xla.Layout, scale: float):
  *inputs, out, lse = saved
  d_out, d_lse = cotangents
  lse, d_lse = (jnp.swapaxes(x, 1, 2) for x in (lse, d_lse))  # (B, N, H)
  lse, delta = tiling.backward_statistics(out, lse, d_out, d_lse)
  return xla.backward((*inputs, d_out, lse, delta), sides[0], sides[1], layout, scale)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _static(q, k, v, key_mask, mask: BlockMask, scale: float):
  return _forward(q, k, v, key_mask, rows.sides(mask), _layout(mask), scale)


def _static_forward(q, k, v, key_mask, mask, scale):
  out, lse = _static(q, k, v, key_mask, mask, scale)
  return (out, lse), (q, k, v, key_mask, out, lse)


def _static_backward(mask, scale, saved, cotangents):
  grads = _backward(saved, cotangents, rows.sides(mask), _layout(mask), scale)
  return *grads, None


def _layout(mask: BlockMask) -> xla.Layout:
  dead = any(side.is_padded for side in rows.sides(mask))
  return xla.Layout(mask.heads, mask.rows, mask.block, dead, jnp.asarray(mask.tables))


_static.defvjp(_static_forward, _static_backward)


@partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _dynamic(q, k, v, key_mask, indices, valid, block: int, scale: float):
  layout = xla.Layout(indices.shape[0], indices.shape[1], block, True)
  return _forward(q, k, v, key_mask, rows.drawn_sides(indices, valid), layout, scale)


def _dynamic_forward(q, k, v, key_mask, indices, valid, block, scale):
  out, lse = _dynamic(q, k, v, key_mask, indices, valid, block, scale)
  return (out, lse), (q, k, v, key_mask, indices, valid, out, lse)


def _dynamic_backward(block, scale, saved, cotangents):
  q, k, v, key_mask, indices, valid, out, lse = saved
  layout = xla.Layout(indices.shape[0], indices.shape[1], block, True)
  sides = rows.drawn_sides(indices, valid)
  grads = _backward((q, k, v, key_mask, out, lse), cotangents, sides, layout, scale)
  return *grads, None, None, None


_dynamic.defvjp(_dynamic_forward, _dynamic_backward)
