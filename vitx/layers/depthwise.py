"""A convolution of every channel by itself, over a grid of any number of axes."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.layers.projections import Dtype
from vitx.ops.kernels.depthwise import grid_convolution


class DepthwiseConvolution(nn.Module):
  """A depthwise convolution with bias, of stride 1, zeros beyond the ends.

  Its parameters are those of `nn.Conv` with as many groups as channels, `kernel` (K, ..., K, 1, C)
  and `bias` (C,).

  Attributes:
    size: K, along every axis; odd.
    dtype: of the computation.
  """

  size: int
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps (B, g, ..., g', C) to the same shape."""
    *extents, channels = x.shape[1:]
    shape = (*(self.size,) * len(extents), 1, channels)
    init = nn.initializers.lecun_normal()
    kernel = self.param("kernel", init, shape, jnp.float32).astype(self.dtype)
    bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32).astype(self.dtype)
    return grid_convolution(x.astype(self.dtype), kernel[..., 0, :]) + bias
