"""Shaped attention (Noci et al. 2023; He and Hofmann 2024): α I + β A - γ C.

A is softmax attention, I the identity and C uniform attention, which A is if all logits are equal.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_inputs
from vitx.ops.kernels.softmax import kernelized_attention, masked_softmax


def shaped_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  alpha: jax.Array,
  beta: jax.Array,
  gamma: jax.Array,
  *,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
  implementation: str = "auto",
) -> tuple[jax.Array, jax.Array | None]:
  """Computes (α I + β A - γ C) v (He and Hofmann 2024, equation 8).

  Args:
    q, k: The queries and keys, (B, N, G, D), G either H or 1: one map for all heads.
    v: The values, (B, N, H, E).
    alpha, beta, gamma: The coefficients, float32, (H,) or (1,).
    key_mask: A boolean mask (B, N), True = may be attended, or `None`. A masked token contributes
      nothing, not even to its own output.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    implementation: The path to take: "masked", "kernelized" (memory linear in N) or "auto".

  Returns:
    The output (B, N, H, E) in the dtype of `v`, and on the masked path the matrix
    (B, H or G, N, N) in float32, else `None`.

  Raises:
    ConfigError: The implementation is unknown.
  """
  check_inputs(q, k, v, key_mask, same_length=True, one_head=True)
  given: dict[str, Any] = {"mask": key_mask, "scale": scale}
  # A map that all heads share is held once for each head, so the matrices are counted by `v`.
  picked = resolve_implementation("shaped_attention", implementation, "shaped", v.shape)
  if picked == "masked":
    return masked_shaped_attention(q, k, v, alpha, beta, gamma, **given)
  return kernelized_shaped_attention(q, k, v, alpha, beta, gamma, **given), None


def masked_shaped_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  alpha: jax.Array,
  beta: jax.Array,
  gamma: jax.Array,
  *,
  mask: jax.Array | None = None,
  scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Computes (α I + β A - γ C) v with the matrix in memory.

  Args:
    q, k: The queries and keys, (B, N, G, D), G either H or 1: one map for all heads.
    v: The values, (B, N, H, E).
    alpha, beta, gamma: The coefficients, float32, (H,) or (1,).
    mask: A boolean mask (B, N), True = may be attended, or `None`. A masked token contributes
      nothing, not even to its own output.
    scale: The factor of the logits; `None` for 1 / sqrt(D).

  Returns:
    The output (B, N, H, E) in the dtype of `v` and the matrix (B, H or G, N, N) in float32.
  """
  attend = None if mask is None else mask[:, None, None, :]
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
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


def kernelized_shaped_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  alpha: jax.Array,
  beta: jax.Array,
  gamma: jax.Array,
  *,
  mask: jax.Array | None = None,
  scale: float | None = None,
) -> jax.Array:
  """Computes α v + β attention(v) - γ mean(v): an epilogue on fused softmax attention.

  Args:
    q, k: The queries and keys, (B, N, G, D), G either H or 1: one map for all heads.
    v: The values, (B, N, H, E).
    alpha, beta, gamma: The coefficients, float32, (H,) or (1,).
    mask: A boolean mask (B, N), True = may be attended, or `None`. A masked token contributes
      nothing, not even to its own output.
    scale: The factor of the logits; `None` for 1 / sqrt(D).

  Returns:
    The output (B, N, H, E) in the dtype of `v`.
  """
  # The kernel wants as many heads in q and k as in v.
  q, k = (jnp.broadcast_to(x, (*x.shape[:2], v.shape[2], x.shape[3])) for x in (q, k))
  attention = kernelized_attention(q, k, v, key_mask=mask, scale=scale)
  full = v.astype(jnp.float32)
  if mask is not None:
    full = jnp.where(mask[:, :, None, None], full, 0.0)
  tokens: int | jax.Array = v.shape[1]
  if mask is not None:
    tokens = jnp.maximum(jnp.sum(mask, axis=1, dtype=jnp.float32), 1)[:, None, None, None]
  mean = jnp.sum(full, axis=1, keepdims=True) / tokens
  alpha, beta, gamma = (x[:, None] for x in (alpha, beta, gamma))  # (H, 1)
  return (alpha * full + beta * attention.astype(jnp.float32) - gamma * mean).astype(v.dtype)
