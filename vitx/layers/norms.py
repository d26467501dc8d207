"""Normalization of tokens and feature maps (..., C)."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.config.checks import Positive, Probability
from vitx.ops import replicas


class BatchNorm(nn.Module):
  """Batch normalization (Ioffe and Szegedy 2015) by statistics of the batch on all devices.

  The collection "batch_stats" contains the running statistics `mean` and `var`; the running
  variance is unbiased, as in PyTorch. With `grad_accum_steps` each micro-batch is normalized
  separately.

  Attributes:
    momentum: The share of the old running statistics that a step keeps.
    epsilon: The number added to the variance.
    scale_init: The initializer of the learned factor; with zeros, the outputs start at zero.
    dtype: The dtype of the result; statistics are float32.
  """

  keeps_state: ClassVar = True

  momentum: Probability = 0.9
  epsilon: Positive = 1e-5
  scale_init: nn.initializers.Initializer = nn.initializers.ones
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """Normalizes (..., C) by statistics of the batch if `train`, else by the running statistics."""
    width = x.shape[-1:]
    running_mean = self.variable("batch_stats", "mean", jnp.zeros, width, jnp.float32)
    running_var = self.variable("batch_stats", "var", jnp.ones, width, jnp.float32)
    scale = self.param("scale", self.scale_init, width, jnp.float32)
    bias = self.param("bias", nn.initializers.zeros, width, jnp.float32)
    full = x.astype(jnp.float32)
    mean, var = running_mean.value, running_var.value
    if train:
      axes = tuple(range(x.ndim - 1))
      mean = replicas.mean(jnp.mean(full, axes))
      var = replicas.mean(jnp.mean(jnp.square(full - mean), axes))
      number = replicas.count() * (x.size // x.shape[-1])
      old, new = self.momentum, 1 - self.momentum
      running_mean.value = old * running_mean.value + new * mean
      unbiased = var * (number / max(number - 1, 1))
      running_var.value = old * running_var.value + new * unbiased
    out = (full - mean) * (jax.lax.rsqrt(var + self.epsilon) * scale) + bias
    return out.astype(self.dtype)


class ChannelNorm(nn.Module):
  """CvT's normalization over the channels, (x - mean) / (std + epsilon) * gain + shift.

  It differs from `LayerNorm`: epsilon is added to the standard deviation, not to the variance. So
  it is in vit-pytorch's CvT, which ViX uses (Jeevan and Sethi 2022).

  Attributes:
    epsilon: The number added to the standard deviation.
    dtype: The dtype of the result; statistics are float32.
  """

  epsilon: Positive = 1e-5
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    width = x.shape[-1:]
    gain = self.param("gain", nn.initializers.ones, width, jnp.float32)
    shift = self.param("shift", nn.initializers.zeros, width, jnp.float32)
    full = x.astype(jnp.float32)
    centered = full - jnp.mean(full, axis=-1, keepdims=True)
    var = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    # The square root has no finite slope at zero, but a constant token must have a gradient too.
    std = jnp.where(var > 0, jnp.sqrt(jnp.where(var > 0, var, 1.0)), 0.0)
    return (centered / (std + self.epsilon) * gain + shift).astype(self.dtype)


class NoNorm(nn.Module):
  """The identity, for use where a normalization is expected.

  Attributes:
    dtype: Not used; it exists because every normalization has it.
  """

  dtype: DTypeLike = jnp.float32

  def __call__(self, x: jax.Array) -> jax.Array:
    return x


def layer_norm(
  *,
  epsilon: Positive = 1e-6,
  use_bias: bool = True,
  use_scale: bool = True,
  dtype: DTypeLike = jnp.float32,
  name: str | None = None,
) -> nn.LayerNorm:
  """Makes a layer normalization (Ba et al. 2016) over the channels.

  Args:
    epsilon: The number added to the variance.
    use_bias: Whether there is a learned offset.
    use_scale: Whether there is a learned factor.
    dtype: The dtype of the result; statistics are float32.
    name: The name of the module.
  """
  return nn.LayerNorm(
    epsilon=epsilon, dtype=dtype, use_bias=use_bias, use_scale=use_scale, name=name
  )


# `BatchNorm` is not in this table, because its call needs the argument `train`.
NORMS = {"layer": layer_norm, "channel": ChannelNorm, "none": NoNorm}
