"""From tokens (B, N, C) to one vector (B, C) for the head."""

import jax
import jax.numpy as jnp

from vitx.ops.layout import TokenLayout


def class_token(x: jax.Array, layout: TokenLayout) -> jax.Array:
  """The first token."""
  return x[:, 0]


def mean(x: jax.Array, layout: TokenLayout) -> jax.Array:
  """The mean of the grid's tokens, in float32."""
  return jnp.mean(x[:, layout.prefix :], axis=1, dtype=jnp.float32).astype(x.dtype)


POOLS = {"cls": class_token, "mean": mean}
