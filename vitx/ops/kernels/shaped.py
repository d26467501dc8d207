"""Shaped attention (Noci et al. 2023; He and Hofmann 2024): α I + β A - γ C.

A is the softmax attention matrix, and I the identity. C is uniform attention, which has equal
weights for all keys.
"""

import math

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_and_hide
from vitx.ops.kernels.softmax import kernelized_attention, masked_softmax
from vitx.ops.shapes import Array, Bool, Float


def shaped_attention(
  q: Float[Array, "B N #H D"],
  k: Float[Array, "B N #H D"],
  v: Float[Array, "B N H E"],
  alpha: Float[Array, " #H"],
  beta: Float[Array, " #H"],
  gamma: Float[Array, " #H"],
  *,
  key_mask: Bool[Array, "B N"] | None = None,
  scale: float | None = None,
  implementation: str = "auto",
) -> tuple[Float[Array, "B N H E"], Float[Array, "B _ N N"] | None]:
  """Computes (α I + β A - γ C) v (He and Hofmann 2024, equation 8).

  I is the identity, A is the softmax attention matrix, and C attends all keys with equal weights.

  Args:
    q, k: The queries and keys, (B, N, G, D). G is H, or 1 if all heads share one matrix A.
    v: The values, (B, N, H, E).
    alpha, beta, gamma: The coefficients, float32, (H,) or (1,).
    key_mask: A boolean mask (B, N), True = may be attended, or `None`. A masked token contributes
      nothing, not even to its own output.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    implementation: The path to take: "masked", "kernelized" (memory linear in N) or "auto".

  Returns:
    The output (B, N, H, E) in the dtype of `v`, and on the masked path the matrix
    α I + β A - γ C, (B, H or G, N, N) in float32, else `None`.
  """
  k, v = check_and_hide(q, k, v, key_mask, same_length=True, one_head=True)
  # A matrix that all heads share is stored once for each head: the heads of `v` count the matrices.
  picked = resolve_implementation(implementation, "shaped", v.shape)
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  if picked == "masked":
    return _multiply_matrix(q, k, v, alpha, beta, gamma, key_mask, scale)
  return _combine(q, k, v, alpha, beta, gamma, key_mask, scale), None


def _multiply_matrix(q, k, v, alpha, beta, gamma, mask, scale: float):
  """Returns (α I + β A - γ C) v and the matrix α I + β A - γ C, (B, H or 1, N, N)."""
  attend = None if mask is None else mask[:, None, None, :]
  logits = jnp.einsum("bnhd,bmhd->bhnm", q, k, preferred_element_type=jnp.float32) * scale
  probabilities = masked_softmax(logits, attend)  # (B, G, N, N)
  seen = jnp.ones(q.shape[:2], bool) if mask is None else mask
  columns = seen[:, None, None, :].astype(jnp.float32)
  uniform = columns / jnp.maximum(jnp.sum(columns, axis=-1, keepdims=True), 1)
  eye = jnp.eye(q.shape[1]) * columns
  alpha, beta, gamma = (x[:, None, None] for x in (alpha, beta, gamma))
  matrix = alpha * eye + beta * probabilities - gamma * uniform
  heads = jnp.broadcast_to(matrix, (*matrix.shape[:1], v.shape[2], *matrix.shape[2:]))
  out = jnp.einsum("bhnm,bmhe->bnhe", heads, v.astype(jnp.float32))
  return out.astype(v.dtype), matrix


def _combine(q, k, v, alpha, beta, gamma, mask, scale: float) -> jax.Array:
  """Computes α v + β attention(v) - γ mean(v), by fused softmax attention and a sum afterwards."""
  # The kernel wants as many heads in q and k as in v.
  q, k = (jnp.broadcast_to(x, (*x.shape[:2], v.shape[2], x.shape[3])) for x in (q, k))
  attention = kernelized_attention(q, k, v, key_mask=mask, scale=scale)
  full, tokens = v.astype(jnp.float32), v.shape[1]
  if mask is not None:
    tokens = jnp.maximum(jnp.sum(mask, axis=1, dtype=jnp.float32), 1)[:, None, None, None]
  mean = jnp.sum(full, axis=1, keepdims=True) / tokens
  alpha, beta, gamma = (x[:, None] for x in (alpha, beta, gamma))  # (H, 1)
  return (alpha * full + beta * attention.astype(jnp.float32) - gamma * mean).astype(v.dtype)
