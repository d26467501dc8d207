"""The channel MLP of a block."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.config.checks import PositiveInt, Rate
from vitx.layers.dropout import Dropout


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
  """Applies the exact GELU, x · Φ(x) (Hendrycks and Gimpel 2016), in float32.

  The forward pass keeps the slope in place of `x`: the backward pass need not find Φ again.
  """
  return (x.astype(jnp.float32) * _normal_cdf(x)).astype(x.dtype)


def _normal_cdf(x: jax.Array) -> jax.Array:
  # By erf: `jax.scipy.stats.norm.cdf` goes through erfc, which computes two formulas everywhere.
  return 0.5 + 0.5 * jax.lax.erf(x.astype(jnp.float32) * math.sqrt(0.5))


def _gelu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  wide, below = x.astype(jnp.float32), _normal_cdf(x)
  density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
  return (wide * below).astype(x.dtype), (below + wide * density).astype(x.dtype)


def _gelu_backward(slope: jax.Array, g: jax.Array) -> tuple[jax.Array]:
  return (g * slope,)


gelu.defvjp(_gelu_forward, _gelu_backward)


def quick_gelu(x: jax.Array) -> jax.Array:
  """Applies x · sigmoid(1.702 x), the sigmoid's approximation of GELU (the same, section 2)."""
  return x * nn.sigmoid(1.702 * x)


def gelu_tanh(x: jax.Array) -> jax.Array:
  """Applies GELU by its approximation with tanh (Hendrycks and Gimpel 2016, section 2)."""
  return nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "gelu": gelu,
  "gelu_tanh": gelu_tanh,
  "quick_gelu": quick_gelu,
  "relu": nn.relu,
}


class MLP(nn.Module):
  """Two linear maps with an activation between them, applied to each token.

  Attributes:
    hidden: width between the two maps.
    dropout: after the activation and after the second map.
    activation: between the two maps, elementwise.
    dtype: of the computation.
  """

  hidden: PositiveInt
  dropout: Rate = 0.0
  activation: Callable[[jax.Array], jax.Array] = gelu
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    kernel_init = nn.initializers.xavier_uniform()
    width = x.shape[-1]
    x = nn.Dense(self.hidden, kernel_init=kernel_init, dtype=self.dtype, name="up")(x)
    x = Dropout(self.dropout)(self.activation(x), train)
    x = nn.Dense(width, kernel_init=kernel_init, dtype=self.dtype, name="down")(x)
    return Dropout(self.dropout)(x, train)
