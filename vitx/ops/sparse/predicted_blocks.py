"""Attention to the blocks of keys that a low-rank prediction ranks first; ours.

A score of two tokens is a product of coefficients and a basis (`key_scores`), so its sum over the
pairs of a query block and a key block is the product of the blocks' sums: as exact, and a block
squared cheaper. Blocks are what a kernel can skip, where single keys are not.
"""

import jax
import jax.numpy as jnp

from vitx.ops.inputs import check_inputs
from vitx.ops.kernels.key_scores import score_keys
from vitx.ops.kernels.selection import keep_first
from vitx.ops.shapes import Array, Bool, Float, Int
from vitx.ops.sparse.chosen_blocks import chosen_block_attention


def choose_blocks(
  coefficients: Float[Array, "B H N S"],
  basis: Float[Array, "N S"],
  budget: int,
  block: int,
  *,
  key_mask: Bool[Array, "B N"] | None = None,
) -> tuple[Int[Array, "B H R K"], Bool[Array, "B H R K"]]:
  """Returns the key blocks that hold most of what is predicted for a query block.

  Args:
    coefficients: (B, H, N, S), of the queries.
    basis: (N, S), of the keys.
    budget: K, key blocks that a query block chooses, at most R = ceil(N / b).
    block: b, tokens in a block; the last may have fewer.
    key_mask: boolean (B, N), True = counts, as a query and as a key. A block without such tokens is
      not chosen.

  Returns:
    int32 indices (B, H, R, K), and bool (B, H, R, K), False where an index only fills the array.
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
  """Computes softmax(q kᵀ · scale) v over the `budget` key blocks scored highest for a query block.

  Which blocks are kept has no gradient.

  Args:
    q, k, v: (B, N, H, D).
    coefficients: (B, H, N - prefix, S), of the queries behind the prefix.
    basis: (N, S), of the keys; those of the prefix are not looked at.
    budget: K, 1 ... R.
    block: b, tokens in a block behind the prefix.
    prefix: tokens in front that attend all and that all attend.
    key_mask: boolean (B, N), True = may be attended; hidden tokens do not count for their blocks.
    scale: of the logits; None for 1 / sqrt(D).
    implementation: "masked", "kernelized" or "auto".

  Returns:
    The output (B, N, H, D) in the dtype of `v`, and on the masked path the probabilities
    (B, H, N, N), else None.

  Raises:
    ConfigError: unknown implementation.
  """
  check_inputs(q, k, v, key_mask, same_length=True)
  grid = None if key_mask is None else key_mask[:, prefix:]
  chosen = choose_blocks(coefficients, basis[prefix:], budget, block, key_mask=grid)
  return chosen_block_attention(
    q,
    k,
    v,
    *chosen,
    block,
    prefix=prefix,
    key_mask=key_mask,
    scale=scale,
    implementation=implementation,
    op="predicted_block_attention",
  )


def _sum_blocks(x: jax.Array, block: int) -> jax.Array:
  """Sums runs of tokens, (..., N, S) -> (..., R, S)."""
  n = x.shape[-2]
  count = -(-n // block)
  padding = [(0, 0)] * (x.ndim - 2) + [(0, count * block - n), (0, 0)]
  x = jnp.pad(x, padding).reshape(*x.shape[:-2], count, block, x.shape[-1])
  return jnp.sum(x, axis=-2, dtype=jnp.float32)
