"""Pooling of tokens (B, N, C) to one vector (B, C) for the head."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.checks import NonNegative
from vitx.ops.layout import TokenLayout


class ClassToken(nn.Module):
  """The first token, which the model puts in front of the grid (Dosovitskiy et al. 2021, eq. 1).

  Attributes:
    stddev: The standard deviation of the token's normal initialization.
  """

  prefix: ClassVar[int] = 1

  stddev: NonNegative = 0.0

  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the first token, (B, C)."""
    return x[:, 0]


class ClassAndDistillation(ClassToken):
  """The class token and the distillation token (Touvron et al. 2021, section 4)."""

  prefix: ClassVar[int] = 2

  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the first two tokens, (B, 2, C)."""
    return x[:, :2]


class Mean(nn.Module):
  """The mean of the grid's tokens, in float32."""

  prefix: ClassVar[int] = 0

  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the mean of the grid's tokens, (B, C)."""
    return jnp.mean(x[:, layout.prefix :], axis=1, dtype=jnp.float32).astype(x.dtype)


class MeanOfAll(nn.Module):
  """The mean, in float32, of all tokens, including a class token in front of the grid.

  Attributes:
    stddev: The standard deviation of the class token's normal initialization.
  """

  prefix: ClassVar[int] = 1

  stddev: NonNegative = 0.0

  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the mean of all tokens, (B, C)."""
    return jnp.mean(x, axis=1, dtype=jnp.float32).astype(x.dtype)


class SequencePooling(nn.Module):
  """The mean of grid tokens, weighted by a softmax of learned scores (Hassani et al. 2021, 3.2)."""

  prefix: ClassVar[int] = 0

  @nn.compact
  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the weighted mean of the grid's tokens, (B, C)."""
    full = x[:, layout.prefix :].astype(jnp.float32)
    weights = jax.nn.softmax(nn.Dense(1, name="score")(full), axis=1)  # (B, N, 1)
    return jnp.sum(weights * full, axis=1).astype(x.dtype)


POOLS = {
  "class_and_distillation": ClassAndDistillation,
  "cls": ClassToken,
  "mean": Mean,
  "mean_of_all": MeanOfAll,
  "sequence": SequencePooling,
}
