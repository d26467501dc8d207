"""Attention to whole blocks of keys that each example chooses for itself.

For the block-sparse kernel, the heads of all examples become heads of one example, each with its
own list of blocks.
"""

import jax
import jax.numpy as jnp

from vitx.ops.kernels.tiling import fold_heads
from vitx.ops.shapes import Array, Bool, Float, Int
from vitx.ops.sparse.block_sparse import block_sparse_attention_dynamic
from vitx.ops.sparse.merge import Partial


def attend_chosen(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H D"],
  *,
  indices: Int[Array, " B #H R K"],
  valid: Bool[Array, " B #H R K"],
  block: int,
  key_mask: Bool[Array, "B N"] | None = None,
  scale: float | None = None,
) -> Partial:
  """Computes attention to the blocks that each query block chose, for tokens without a prefix.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D).
    indices: The chosen key blocks of each query block, int (B, H or 1, R, K).
    valid: A mask of these indices, False where an index only fills the array.
    block: The number of tokens in a block.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).

  Returns:
    The output (B, N, H, D) and the log-sum-exp of each query's logits, (B, H, N).
  """
  batch, length, heads, _ = q.shape
  if batch == 0:  # the kernel needs at least one head
    return v, jnp.zeros((batch, heads, length))

  def fold(x: jax.Array) -> jax.Array:  # (B, N, H, ...) -> (1, N, B·H, ...)
    return jnp.moveaxis(x, 0, 1).reshape(1, length, batch * heads, *x.shape[3:])

  seen = None
  if key_mask is not None:
    seen = fold(jnp.broadcast_to(key_mask[:, :, None], (batch, length, heads)))
  q, k, v = map(fold, (q, k, v))
  indices, valid = fold_heads((indices, valid), heads)
  out, lse = block_sparse_attention_dynamic(
    q, k, v, indices, valid, block, key_mask=seen, scale=scale
  )
  out = jnp.moveaxis(out.reshape(length, batch, heads, -1), 0, 1)
  return out, lse.reshape(batch, heads, length)
