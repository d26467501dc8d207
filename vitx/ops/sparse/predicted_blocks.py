"""Attention to the blocks of keys that a low-rank prediction ranks first; a method of vitx.

The score of two tokens is a product of coefficients and a basis (`key_scores`). So the sum of the
scores of all pairs in a query block and a key block is the product of the blocks' sums: equally
exact, and cheaper by the square of the block size. A kernel can skip blocks, but not single keys.
"""

from functools import partial

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_and_hide
from vitx.ops.kernels.key_scores import score_keys
from vitx.ops.kernels.selection import keep_first
from vitx.ops.kernels.softmax import masked_attention
from vitx.ops.kernels.top_k import kept_mask
from vitx.ops.shapes import Array, Bool, Float
from vitx.ops.sparse.chosen_blocks import attend_chosen
from vitx.ops.sparse.merge import with_prefix


def predicted_block_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H D"],
  coefficients: Float[Array, "B H grid S"],
  basis: Float[Array, "N S"],
  budget: int,
  block: int,
  *,
  prefix: int = 0,
  key_mask: Bool[Array, "B N"] | None = None,
  scale: float | None = None,
  implementation: str = "auto",
) -> tuple[Float[Array, "B N H D"], Float[Array, "B H N N"] | None]:
  """Computes softmax(q kᵀ · scale) v over the `budget` highest-scored key blocks of a query block.

  The choice of the blocks has no gradient.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D).
    coefficients: The S coefficients of each query after the prefix, (B, H, N - prefix, S).
    basis: The S basis vectors over the keys, (N, S); the rows for the prefix are not used.
    budget: The number K of key blocks to keep, from 1 to the number of blocks.
    block: The number b of tokens in a block after the prefix.
    prefix: The number of tokens in front that attend all and that all attend.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`. Hidden tokens do not count
      in the scores of their blocks.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    implementation: The path to take: "masked", "kernelized" or "auto".

  Returns:
    The output (B, N, H, D) in the dtype of `v`, and on the masked path the probabilities
    (B, H, N, N), else `None`.
  """
  k, v = check_and_hide(q, k, v, key_mask, same_length=True)
  grid = None if key_mask is None else key_mask[:, prefix:]
  chosen = _choose_blocks(coefficients, basis[prefix:], budget, block, grid)
  if resolve_implementation(implementation, "chosen_blocks", q.shape) == "masked":
    blocks, length = kept_mask(*chosen, chosen[0].shape[2]), q.shape[1] - prefix
    tokens = jnp.repeat(jnp.repeat(blocks, block, axis=2), block, axis=3)[:, :, :length, :length]
    ahead = [(0, 0), (0, 0), (prefix, 0), (prefix, 0)]  # all attend the prefix, which attends all
    mask = jnp.pad(tokens, ahead, constant_values=True)
    return masked_attention(q, k, v, mask=mask, key_mask=key_mask, scale=scale)
  indices, valid = chosen
  attend = partial(attend_chosen, indices=indices, valid=valid, block=block)
  return with_prefix(attend, q, k, v, prefix=prefix, key_mask=key_mask, scale=scale)[0], None


def _choose_blocks(
  coefficients: jax.Array, basis: jax.Array, budget: int, block: int, key_mask: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
  """Returns the K key blocks with the largest predicted scores, (B, H, R, K), and a mask of them.

  A token that `key_mask` (B, N) hides counts neither as a query nor as a key. A block in which all
  tokens are hidden is not chosen.
  """
  coefficients, basis = jax.lax.stop_gradient((coefficients, basis))
  if key_mask is None:
    scores = score_keys(_sum_blocks(coefficients, block), _sum_blocks(basis, block))
    return keep_first(scores, budget)
  coefficients = jnp.where(key_mask[:, None, :, None], coefficients, 0)
  basis = jnp.where(key_mask[:, :, None], basis, 0)
  counts = _sum_blocks(key_mask[..., None], block)[:, None, None, :, 0]
  queries, keys = _sum_blocks(coefficients, block), _sum_blocks(basis, block)[:, None]
  return keep_first(score_keys(queries, keys, counts > 0), budget)


def _sum_blocks(x: jax.Array, block: int) -> jax.Array:
  """Sums S values over each block of tokens, (..., N, S) -> (..., ceil(N / block), S)."""
  n = x.shape[-2]
  count = -(-n // block)
  padding = [(0, 0)] * (x.ndim - 2) + [(0, count * block - n), (0, 0)]
  x = jnp.pad(x, padding).reshape(*x.shape[:-2], count, block, x.shape[-1])
  return jnp.sum(x, axis=-2, dtype=jnp.float32)
