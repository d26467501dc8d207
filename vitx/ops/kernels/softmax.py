"""Dense softmax attention, with or without the whole attention matrix in memory.

`masked_attention` computes the whole matrix and is the reference. `kernelized_attention` avoids the
matrix, by cuDNN or by tiles, unless there are few keys.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from vitx.ops.dropout import dropout
from vitx.ops.implementation import target
from vitx.ops.kernels import cudnn
from vitx.ops.kernels.flash import flash_attention
from vitx.ops.shapes import Array, Bool, Float

FEW_KEYS = 128  # with at most this many keys, a tile costs less to store than to recompute


def masked_softmax(
  logits: Float[Array, "... N M"], mask: jax.Array | None = None
) -> Float[Array, "... N M"]:
  """Returns the softmax over the last axis in float32; a row without allowed entries is zero.

  Args:
    logits: The logits, (..., N, M).
    mask: A boolean mask, broadcastable to `logits`, True = may attend, or `None`.

  Returns:
    The probabilities, float32 (..., N, M).
  """
  logits = logits.astype(jnp.float32)
  if mask is None:
    return jax.nn.softmax(logits, axis=-1)
  logits = jnp.where(mask, logits, -jnp.inf)
  # An empty row has no maximum; subtracting zero keeps its value and its gradient from being NaN.
  top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
  top = jnp.where(jnp.isfinite(top), top, 0.0)
  weights = jnp.where(mask, jnp.exp(jnp.where(mask, logits - top, 0.0)), 0.0)
  total = jnp.sum(weights, axis=-1, keepdims=True)
  return weights / jnp.where(total == 0, 1.0, total)


def masked_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B M H D"],
  v: Float[Array, "B M H E"],
  *,
  mask: Bool[Array, "#B #H #N #M"] | None = None,
  key_mask: Bool[Array, "B M"] | None = None,
  scale: float | None = None,
  dropout_rate: float = 0.0,
  key: jax.Array | None = None,
) -> tuple[Float[Array, "B N H E"], Float[Array, "B H N M"]]:
  """Computes softmax(q kᵀ · scale) v with the matrix in memory (Vaswani et al. 2017, equation 1).

  Args:
    q: The queries, (B, N, H, D).
    k: The keys, (B, M, H, D).
    v: The values, (B, M, H, E).
    mask: A boolean mask, broadcastable to (B, H, N, M), True = may attend, or `None`.
    key_mask: A boolean mask (B, M), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    dropout_rate: The rate at which probabilities are dropped. Each example has its own random bits.
    key: The random key of the dropout; `None` drops nothing.

  Returns:
    The output (B, N, H, E) in the dtype of `v` and the probabilities (B, H, N, M) in float32,
    before dropout.
  """
  if key_mask is not None:
    keys = key_mask[:, None, None]
    mask = keys if mask is None else mask & keys
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  logits = jnp.einsum("bnhd,bmhd->bhnm", q, k, preferred_element_type=jnp.float32) * scale
  probabilities = masked_softmax(logits, mask)
  dropped = probabilities if key is None else dropout(probabilities, dropout_rate, key)
  out = jnp.einsum("bhnm,bmhd->bnhd", dropped.astype(v.dtype), v)
  return out, probabilities


def kernelized_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B M H D"],
  v: Float[Array, "B M H E"],
  *,
  key_mask: Bool[Array, "B M"] | None = None,
  scale: float | None = None,
  causal: bool = False,
) -> Float[Array, "B N H E"]:
  """Computes softmax(q kᵀ · scale) v without an N x N matrix in memory, on every platform.

  A program that is lowered for CUDA uses cuDNN's fused kernel where it applies: half precision, no
  `key_mask`, heads of up to 128 channels, and cuDNN installed. All other calls use
  `flash_attention`, because `jax.nn.dot_product_attention` would store the matrix, or a mask as a
  bias of equal size. Only if M <= 128 and M <= N / 2, the N x M matrix is stored. The choice of
  cuDNN is made at lowering, so it also suits programs traced on a CPU.

  Args:
    q: The queries, (B, N, H, D).
    k: The keys, (B, M, H, D).
    v: The values, (B, M, H, E).
    key_mask: A boolean mask (B, M), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    causal: Whether query i sees keys 0 ... i only.

  Returns:
    The output (B, N, H, E); zero for a query that sees nothing.
  """
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  if key_mask is None and target() != "any" and cudnn.applies(q, k, v):
    return jax.lax.platform_dependent(
      q,
      k,
      v,
      cuda=partial(cudnn.cudnn_attention, scale=scale, causal=causal),
      default=partial(_tiles, scale=scale, causal=causal),
    )
  return _tiles(q, k, v, key_mask, scale=scale, causal=causal)


def _tiles(q, k, v, key_mask=None, *, scale, causal):
  if k.shape[1] <= min(FEW_KEYS, q.shape[1] // 2):  # memory linear in N, as for Linformer's slots
    return masked_attention(q, k, v, key_mask=key_mask, scale=scale)[0]
  return flash_attention(q, k, v, key_mask=key_mask, scale=scale, causal=causal)[0]
