"""Attention to the keys that a low-rank prediction ranks first (Sparsifiner: Wei et al. 2023).

The score of a query and a key is a product of coefficients of the query and a basis over the keys,
both known beforehand. "masked" scores all pairs at once and attends under a mask; "kernelized" does
so for some queries at a time, and neither scores nor mask nor logits are ever (N, N).
"""

import math

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.kernels import tiling
from vitx.ops.kernels.softmax import kernelized_attention, masked_attention
from vitx.ops.kernels.top_k import kept_keys_attention, kept_mask

FEWEST_ROWS = 16  # queries of every example and head in a step: fewer are slow, not smaller


def score_keys(
  coefficients: jax.Array, basis: jax.Array, key_mask: jax.Array | None = None
) -> jax.Array:
  """Returns the scores of all keys, float32 (B, H, N, M); -inf where a key may not be attended.

  Args:
    coefficients: (B, H, N, S).
    basis: (M, S).
    key_mask: boolean (B, M), True = may be attended.
  """
  scores = jnp.einsum("bhns,ms->bhnm", coefficients, basis, preferred_element_type=jnp.float32)
  return scores if key_mask is None else jnp.where(key_mask[:, None, None], scores, -jnp.inf)


def keep_first(scores: jax.Array, kept: int) -> tuple[jax.Array, jax.Array]:
  """Returns the keys of the largest scores, the lower number first where they are equal.

  Args:
    scores: (..., M).
    kept: K, at most M.

  Returns:
    int32 indices (..., K), and bool (..., K), False for a score of -inf.
  """
  values, indices = jax.lax.top_k(scores, kept)
  return indices, values > -jnp.inf


def predicted_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  coefficients: jax.Array,
  basis: jax.Array,
  kept: int,
  *,
  prefix: int = 0,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
  implementation: str = "auto",
) -> tuple[jax.Array, jax.Array | None]:
  """Computes softmax(q kᵀ · scale) v over the `kept` keys of each query that are scored highest.

  Which keys are kept has no gradient.

  Args:
    q, k, v: (B, N, H, D).
    coefficients: (B, H, N - prefix, S), of the queries behind the prefix.
    basis: (N, S), of the keys.
    kept: K, 1 ... N.
    prefix: queries in front that attend all keys; as keys they are like any other.
    key_mask: boolean (B, N), True = may be attended; of fewer keys than K all are kept.
    scale: of the logits; None for 1 / sqrt(D).
    implementation: "masked", "kernelized" or "auto".

  Returns:
    The output (B, N, H, D) in the dtype of `v`, and on the masked path the probabilities
    (B, H, N, N), else None.

  Raises:
    ConfigError: unknown implementation.
  """
  coefficients, basis = jax.lax.stop_gradient((coefficients, basis))
  if resolve_implementation("predicted_attention", implementation, q.shape[1]) == "masked":
    indices, valid = keep_first(score_keys(coefficients, basis, key_mask), kept)
    mask = kept_mask(indices, valid, k.shape[1])
    every = jnp.ones((*mask.shape[:2], prefix, k.shape[1]), bool)
    if key_mask is not None:
      every &= key_mask[:, None, None]
    mask = jnp.concatenate([every, mask], axis=2)
    return masked_attention(q, k, v, mask=mask, scale=scale)
  out = _in_parts(q[:, prefix:], k, v, coefficients, basis, kept, key_mask, scale)
  if prefix:
    front = kernelized_attention(q[:, :prefix], k, v, key_mask=key_mask, scale=scale)
    out = jnp.concatenate([front, out], axis=1)
  return out, None


def _in_parts(q, k, v, coefficients, basis, kept: int, key_mask, scale: float | None) -> jax.Array:
  """Attends from some queries (B, c, H, D) at a time, recomputed backward."""
  batch, n, heads, _ = q.shape
  size = min(n, max(FEWEST_ROWS, tiling.step_elements() // (batch * heads * k.shape[1])))
  count = math.ceil(n / size)

  def attend(part: tuple[jax.Array, jax.Array]) -> jax.Array:
    q, coefficients = part
    indices, valid = keep_first(score_keys(coefficients, basis, key_mask), kept)
    return kept_keys_attention(q, k, v, indices, valid, scale=scale)

  def split(x: jax.Array) -> jax.Array:
    """Cuts (B, N, ...) into (parts, B, c, ...)."""
    return jnp.moveaxis(tiling.split_rows(x, count, size), 1, 0)

  parts = split(q), jnp.moveaxis(split(jnp.moveaxis(coefficients, 1, 2)), 3, 2)
  out = jax.lax.map(jax.checkpoint(attend), parts)
  return tiling.join_rows(jnp.moveaxis(out, 0, 1), n)
