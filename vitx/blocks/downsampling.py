"""PiT's step between the stages of a network, which leaves fewer tokens with more channels."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.layers.convolution import Conv
from vitx.layers.depthwise import DepthwiseConvolution
from vitx.ops.layout import TokenLayout


class DepthwisePool(nn.Module):
  """PiT's pooling layer as in vit-pytorch 0.19.6 (cf. Heo et al. 2021, section 3.2).

  The grid goes through two convolutions. The first is depthwise, 3 x 3 with stride 2, and turns
  each of the input's C channels into `width / C` channels. The second is 1 x 1; PiT's own code
  does not have it. Prefix tokens go through a linear map.

  Attributes:
    width: The number of channels of the output, a multiple of C.
    dtype: The dtype of the computation.
  """

  width: int
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, layout: TokenLayout) -> tuple[jax.Array, TokenLayout]:
    """Returns the N' tokens (B, N', width) and their layout."""
    batch, _, channels = x.shape
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
