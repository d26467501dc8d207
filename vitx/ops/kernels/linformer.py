"""Linformer's attention: softmax over M slots that are fixed mixtures of the tokens."""

import jax
import jax.numpy as jnp


def to_slots(x: jax.Array, projection: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
  """Mixes N tokens into M slots, Eᵀ x (Wang et al. 2020, equation 7).

  Args:
    x: (B, N, H, D), keys or values.
    projection: E, (N, M).
    mask: boolean (B, N); masked tokens are left out of every slot.

  Returns:
    (B, M, H, D) in the dtype of `x`.
  """
  if mask is not None:
    x = jnp.where(mask[:, :, None, None], x, jnp.zeros_like(x))
  return jnp.einsum("bnhd,nm->bmhd", x, projection.astype(x.dtype))
