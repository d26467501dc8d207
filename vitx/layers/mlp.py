"""The channel MLP of a block."""

import math
from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.config.checks import PositiveInt, Rate
from vitx.layers.dropout import Dropout


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
  """Applies the exact GELU, x · Φ(x) (Hendrycks and Gimpel 2016), in float32.

  The forward pass saves the derivative at `x` instead of `x`. So the backward pass need not compute
  Φ, the distribution function of the standard normal distribution.
  """
  return (x.astype(jnp.float32) * _normal_cdf(x)).astype(x.dtype)


def _normal_cdf(x: jax.Array) -> jax.Array:
  # `jax.scipy.stats.norm.cdf` is slower: its erfc computes two formulas for every element.
  return 0.5 + 0.5 * jax.lax.erf(x.astype(jnp.float32) * math.sqrt(0.5))


def _gelu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  wide, below = x.astype(jnp.float32), _normal_cdf(x)
  density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
  return (wide * below).astype(x.dtype), (below + wide * density).astype(x.dtype)


def _gelu_backward(slope: jax.Array, g: jax.Array) -> tuple[jax.Array]:
  return (g * slope,)


gelu.defvjp(_gelu_forward, _gelu_backward)


def quick_gelu(x: jax.Array) -> jax.Array:
  """Approximates GELU by x · sigmoid(1.702 x) (Hendrycks and Gimpel 2016, section 2)."""
  return x * nn.sigmoid(1.702 * x)


def gelu_tanh(x: jax.Array) -> jax.Array:
  """Approximates GELU by its formula with tanh (Hendrycks and Gimpel 2016, section 2)."""
  return nn.gelu(x, approximate=True)


Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu"]
ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
  "gelu": gelu,
  "gelu_tanh": gelu_tanh,
  "quick_gelu": quick_gelu,
  "relu": nn.relu,
}


class MLP(nn.Module):
  """Two linear maps with an activation between them, applied to each token.

  Attributes:
    hidden: The width between the two maps.
    dropout: The rate of dropout after the activation and after the second map.
    activation: The elementwise function between the two maps.
    dtype: The dtype of the computation.
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
