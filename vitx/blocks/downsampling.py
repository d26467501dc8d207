"""Between the stages of a network: fewer tokens, more channels."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.config.errors import ConfigError
from vitx.layers.convolution import Conv
from vitx.layers.depthwise import DepthwiseConvolution
from vitx.ops.layout import TokenLayout


class DepthwisePool(nn.Module):
  """PiT's pooling layer as vit-pytorch 0.19.6 has it (cf. Heo et al. 2021, section 3.2).

  The grid passes a 3 x 3 convolution of stride 2, each channel by itself giving `width / C` others,
  and a 1 x 1 convolution (which PiT's own code has not); prefix tokens pass a linear map.

  Attributes:
    width: channels afterwards, a multiple of those before.
    dtype: of the computation.
  """

  width: int
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, layout: TokenLayout) -> tuple[jax.Array, TokenLayout]:
    """Returns (B, N', width) and the layout of the N' tokens.

    Raises:
      ConfigError: the width is no multiple of C.
    """
    batch, _, channels = x.shape
    if self.width % channels:
      raise ConfigError(
        f"model.width={self.width} of a stage must be a multiple of the {channels} before it:"
        " pooling convolves each channel by itself"
      )
    prefix, grid = x[:, : layout.prefix], x[:, layout.prefix :]
    depthwise = DepthwiseConvolution(3, 2, self.width, dtype=self.dtype, name="depthwise")
    y = depthwise(grid.reshape(batch, *layout.grid, channels))
    y = Conv(self.width, (1, 1), dtype=self.dtype, name="pointwise")(y)
    after = TokenLayout(y.shape[1:3], layout.prefix)
    tokens = y.reshape(batch, -1, self.width)
    if layout.prefix:
      front = nn.Dense(self.width, dtype=self.dtype, name="prefix")(prefix)
      tokens = jnp.concatenate([front, tokens], axis=1)
    return tokens, after
