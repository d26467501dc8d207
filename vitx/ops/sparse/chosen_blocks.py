"""Attention to whole blocks of keys that each example chooses for itself, and to a prefix.

The masked path is the definition: all keys of a chosen block are seen. The kernelized path gives
the heads of all examples to the block-sparse kernel as heads of one example, each with its list.
"""

from functools import partial

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.kernels.softmax import masked_attention
from vitx.ops.kernels.top_k import kept_mask
from vitx.ops.sparse.block_sparse import block_sparse_attention_dynamic
from vitx.ops.sparse.merge import Partial, with_prefix


def chosen_block_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  indices: jax.Array,
  valid: jax.Array,
  block: int,
  *,
  prefix: int = 0,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
  implementation: str = "auto",
  op: str = "chosen_block_attention",
) -> tuple[jax.Array, jax.Array | None]:
  """Computes softmax(q kᵀ · scale) v over the key blocks that each query block chose.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D); the first P tokens are a prefix, and the
      others form R blocks.
    indices: The key blocks of each query block, int (B, H or 1, R, K), none twice.
    valid: A mask like `indices`, False where an index only fills the array.
    block: The number b of tokens in a block; the last may have fewer.
    prefix: The number P of tokens that attend all and that all attend.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    implementation: The path to take: "masked", "kernelized" or "auto".
    op: The name under which the choice is recorded.

  Returns:
    The output (B, N, H, D) in the dtype of `v`, and on the masked path the probabilities
    (B, H, N, N), else `None`.

  Raises:
    ConfigError: The implementation is unknown.
  """
  if resolve_implementation(op, implementation, "chosen_blocks", q.shape) == "masked":
    mask = chosen_mask(indices, valid, block, q.shape[1], prefix)
    if key_mask is not None:
      mask &= key_mask[:, None, None]
    return masked_attention(q, k, v, mask=mask, scale=scale)
  attend = partial(attend_chosen, indices=indices, valid=valid, block=block)
  return with_prefix(attend, q, k, v, prefix=prefix, key_mask=key_mask, scale=scale)[0], None


def chosen_mask(
  indices: jax.Array, valid: jax.Array, block: int, length: int, prefix: int = 0
) -> jax.Array:
  """Returns the mask (B, H or 1, N, N) of `chosen_block_attention`; `length` is N."""
  blocks = kept_mask(indices, valid, indices.shape[2])
  tokens = jnp.repeat(jnp.repeat(blocks, block, axis=2), block, axis=3)
  grid = tokens[:, :, : length - prefix, : length - prefix]
  return jnp.pad(grid, [(0, 0), (0, 0), (prefix, 0), (prefix, 0)], constant_values=True)


def attend_chosen(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  *,
  indices: jax.Array,
  valid: jax.Array,
  block: int,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
) -> Partial:
  """Returns the output (B, N, H, D) and lse (B, H, N) over chosen blocks, without a prefix."""
  batch, length, heads, _ = q.shape

  def fold(x: jax.Array) -> jax.Array:  # (B, N, H, ...) -> (1, N, B·H, ...)
    return jnp.moveaxis(x, 0, 1).reshape(1, length, batch * heads, *x.shape[3:])

  def lists(x: jax.Array) -> jax.Array:  # (B, H or 1, R, K) -> (B·H, R, K)
    return jnp.broadcast_to(x, (batch, heads, *x.shape[2:])).reshape(-1, *x.shape[2:])

  seen = None
  if key_mask is not None:
    seen = fold(jnp.broadcast_to(key_mask[:, :, None], (batch, length, heads)))
  out, lse = block_sparse_attention_dynamic(
    fold(q), fold(k), fold(v), lists(indices), lists(valid), block, key_mask=seen, scale=scale
  )
  out = jnp.moveaxis(out.reshape(length, batch, heads, -1), 0, 1)
  return out, lse.reshape(batch, heads, length)
