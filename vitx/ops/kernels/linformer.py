"""Linformer's attention: a softmax over M slots, each a fixed mixture of the tokens."""

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_and_hide
from vitx.ops.kernels.softmax import kernelized_attention, masked_attention
from vitx.ops.shapes import Array, Bool, Float


def linformer_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N #H D"],
  v: Float[Array, "B N #H D"],
  key_slots: Float[Array, "N M"],
  value_slots: Float[Array, "N M"],
  *,
  key_mask: Bool[Array, "B N"] | None = None,
  scale: float | None = None,
  dropout: float = 0.0,
  key: jax.Array | None = None,
  implementation: str = "auto",
) -> tuple[Float[Array, "B N H D"], Float[Array, "B H N M"] | None]:
  """Computes softmax(q (Eᵀ k)ᵀ · scale) Fᵀ v (Wang et al. 2020, equation 7).

  Args:
    q: The queries, (B, N, H, D).
    k, v: The keys and the values, (B, N, H, D), or with one head that all query heads read.
    key_slots: The matrix E, (N, M).
    value_slots: The matrix F, (N, M).
    key_mask: A boolean mask (B, N) or `None`; masked tokens are left out of every slot.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    dropout: The rate at which probabilities are dropped, if there is a `key`.
    key: The random key of the dropout; `None` outside training.
    implementation: The path to take: "masked", "kernelized" (which returns no matrix) or "auto".

  Returns:
    The output (B, N, H, D), and on the masked path the matrix (B, H, N, M) in float32, else `None`.
  """
  k, v = check_and_hide(q, k, v, key_mask, same_length=True, one_head=True)
  picked = resolve_implementation(implementation, "linformer", q.shape, dropout=dropout)
  k, v = (
    jnp.broadcast_to(slots, (*slots.shape[:2], *q.shape[2:]))  # (B, M, H, D)
    for slots in (_to_slots(k, key_slots), _to_slots(v, value_slots))
  )
  if picked == "masked":
    return masked_attention(q, k, v, scale=scale, dropout_rate=dropout, key=key)
  return kernelized_attention(q, k, v, scale=scale), None


def _to_slots(x: jax.Array, projection: jax.Array) -> jax.Array:
  """Mixes N tokens into M slots, Eᵀ x: (B, N, H, D) -> (B, M, H, D)."""
  return jnp.einsum("bnhd,nm->bmhd", x, projection.astype(x.dtype))
