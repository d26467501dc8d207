"""Dense softmax attention: the reference that holds the matrix, and paths that never do."""

import math

import jax
import jax.numpy as jnp

from vitx.ops.dropout import dropout
from vitx.ops.kernels.flash import flash_attention

FEW_KEYS = 128  # of up to so many, a tile costs less to keep than to compute again


def masked_softmax(logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
  """Softmax over the last axis in float32; a row that may attend nothing is exactly zero.

  Args:
    logits: (..., N, M).
    mask: boolean, broadcastable to `logits`, True = may attend.

  Returns:
    float32 probabilities (..., N, M).
  """
  logits = logits.astype(jnp.float32)
  if mask is None:
    return jax.nn.softmax(logits, axis=-1)
  logits = jnp.where(mask, logits, -jnp.inf)
  # An empty row has no maximum: subtract zero there, so that neither value nor gradient is NaN.
  top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  top = jnp.where(jnp.isfinite(top), top, 0.0)
  weights = jnp.where(mask, jnp.exp(jnp.where(mask, logits - top, 0.0)), 0.0)
  total = jnp.sum(weights, axis=-1, keepdims=True)
  return weights / jnp.where(total == 0, 1.0, total)


def masked_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  *,
  mask: jax.Array | None = None,
  scale: float | None = None,
  dropout_rate: float = 0.0,
  key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """softmax(q kᵀ · scale) v with the matrix in memory (Vaswani et al. 2017, equation 1).

  Args:
    q: (B, N, H, D).
    k: (B, M, H, D).
    v: (B, M, H, E).
    mask: boolean, broadcastable to (B, H, N, M), True = may attend.
    scale: of the logits; none: 1 / sqrt(D).
    dropout_rate: of the probabilities, drawn per example.
    key: for the dropout.

  Returns:
    The output (B, N, H, E) in the dtype of `v` and the probabilities (B, H, N, M) in float32, as
    they were before dropout.
  """
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  logits = jnp.einsum("bnhd,bmhd->bhnm", q, k, preferred_element_type=jnp.float32) * scale
  probabilities = masked_softmax(logits, mask)
  dropped = probabilities if key is None else dropout(probabilities, dropout_rate, key)
  out = jnp.einsum("bhnm,bmhd->bnhd", dropped.astype(v.dtype), v)
  return out, probabilities


def fused_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  *,
  mask: jax.Array | None = None,
  scale: float | None = None,
) -> jax.Array:
  """The same by `jax.nn.dot_product_attention`, with empty rows set to zero.

  Args: as for `masked_attention`; the mask must have four axes.

  Returns:
    The output (B, N, H, E).
  """
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  width = v.shape[-1]
  if q.shape[-1] != width:  # the library wants one width; zeros change no logit
    q, k, v = (_wide(x, max(q.shape[-1], width)) for x in (q, k, v))
  out = jax.nn.dot_product_attention(q, k, v, mask=mask, scale=scale)[..., :width]
  if mask is None:
    return out
  # The library returns the mean of all values for a row that may attend nothing.
  seen = jnp.any(mask, axis=-1)  # (B | 1, H | 1, N)
  return jnp.where(jnp.moveaxis(seen, 1, 2)[..., None], out, 0)


def _wide(x: jax.Array, width: int) -> jax.Array:
  return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def kernelized_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  *,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
) -> jax.Array:
  """The same by what is fastest: tiles that stay in cache on a CPU, elsewhere the library's call.

  Args:
    q: (B, N, H, D).
    k: (B, M, H, D).
    v: (B, M, H, E).
    key_mask: boolean (B, M), True = may be attended.
    scale: of the logits; none: 1 / sqrt(D).

  Returns:
    The output (B, N, H, E).
  """
  mask = None if key_mask is None else key_mask[:, None, None, :]
  if jax.default_backend() == "cpu":
    if k.shape[1] <= min(FEW_KEYS, q.shape[1] // 2):  # as of Linformer: linear in N as it is
      return masked_attention(q, k, v, mask=mask, scale=scale)[0]
    return flash_attention(q, k, v, key_mask=key_mask, scale=scale)[0]
  return fused_attention(q, k, v, mask=mask, scale=scale)
