"""Position embeddings that are added to the tokens."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.ops.layout import TokenLayout


class LearnedPosition(nn.Module):
  """One learned vector per token, prefix tokens included (Dosovitskiy et al. 2021, equation 1).

  Attributes:
    stddev: of the normal initialisation.
  """

  stddev: float = 0.02

  @nn.compact
  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    shape = (1, layout.length, x.shape[-1])
    table = self.param("table", nn.initializers.normal(self.stddev), shape, jnp.float32)
    return x + table.astype(x.dtype)


class NoPosition(nn.Module):
  """Leaves the tokens as they are."""

  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    return x


POSITIONS = {"learned": LearnedPosition, "none": NoPosition}
