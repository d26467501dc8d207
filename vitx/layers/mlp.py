"""The channel MLP of a block."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.checks import PositiveInt, Rate
from vitx.layers.dropout import Dropout

Dtype = jax.typing.DTypeLike


class MLP(nn.Module):
  """Two linear maps with an exact GELU between them, applied to each token.

  Attributes:
    hidden: width between the two maps.
    dropout: after the activation and after the second map.
    dtype: of the computation.
  """

  hidden: PositiveInt
  dropout: Rate = 0.0
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    kernel_init = nn.initializers.xavier_uniform()
    width = x.shape[-1]
    x = nn.Dense(self.hidden, kernel_init=kernel_init, dtype=self.dtype, name="up")(x)
    x = Dropout(self.dropout)(nn.gelu(x, approximate=False), train)
    x = nn.Dense(width, kernel_init=kernel_init, dtype=self.dtype, name="down")(x)
    return Dropout(self.dropout)(x, train)
