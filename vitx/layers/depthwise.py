"""A depthwise convolution over a grid of any number of axes."""

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.config.checks import Range
from vitx.ops.kernels.depthwise import grid_convolution

# The side is limited, because on a CPU the compiled program has an operation for each entry of the
# kernel. It is odd, so that the convolution does not change the size of the grid.
KernelSide = Annotated[int, Range("[1, 31], odd")]


class DepthwiseConvolution(nn.Module):
  """A depthwise convolution with zeros beyond the ends of the grid.

  Parameters and results are those of `nn.Conv` with as many groups as channels and a padding of
  `size // 2`. The parameters are `kernel` (K, ..., K, 1, W) and `bias` (W,), where K is `size` and
  W is `width`.

  Attributes:
    size: The size K of the kernel along every axis; odd.
    stride: The stride along every axis.
    width: The channels W of the output, a multiple of the input's; None means the input's channels.
    use_bias: Whether there is a bias.
    dtype: The dtype of the computation.
  """

  size: int
  stride: int = 1
  width: int | None = None
  use_bias: bool = True
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps (B, g, ..., g', C) to (B, ceil(g / stride), ..., ceil(g' / stride), W).

    The sides of the grid are g, ..., g', and W is the number of output channels.
    """
    *extents, channels = x.shape[1:]
    width = self.width or channels
    shape = (*(self.size,) * len(extents), 1, width)
    init = nn.initializers.lecun_normal()
    kernel = self.param("kernel", init, shape, jnp.float32).astype(self.dtype)
    read = jnp.repeat(x.astype(self.dtype), width // channels, axis=-1)
    y = grid_convolution(read, kernel[..., 0, :], self.stride)
    if not self.use_bias:
      return y
    bias = self.param("bias", nn.initializers.zeros, (width,), jnp.float32)
    return y + bias.astype(self.dtype)
