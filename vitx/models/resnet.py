"""ResNet for small images, a convolutional baseline."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.blocks.stems import square_convolution
from vitx.config.checks import Depth, PositiveInt
from vitx.config.errors import ConfigError
from vitx.layers.norms import BatchNorm
from vitx.models import names

STAGES = 3
# The 3 x 3 convolutions of He et al. 2015, as a function of the width.
convolution = functools.partial(
  square_convolution,
  kernel=3,
  use_bias=False,
  kernel_init=nn.initializers.variance_scaling(2.0, "fan_in", "normal"),
)


class ResNet(nn.Module):
  """ResNet for CIFAR (He et al. 2016, section 4.2): 6 n + 2 layers, no parameters in shortcuts.

  Batch statistics are taken over the whole batch, also on several devices.

  Attributes:
    num_classes: The number of outputs of the head.
    depth: The number of layers, 6 n + 2, such as 20, 32, 44, 56 or 110.
    width: The number of channels of the first of three stages; each later stage has twice the
      channels of the previous one.
    dtype: The dtype of the computation; parameters and statistics are float32.
  """

  num_classes: int
  depth: Depth = 20
  width: PositiveInt = 16
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes).

    Args:
      images: The images, (B, height, width, channels), normalized floats.
      train: Whether statistics are taken from the batch; the collection "batch_stats" must then be
        mutable.
    """
    blocks, rest = divmod(self.depth - 2, 2 * STAGES)
    if rest or blocks < 1:
      raise ConfigError(f"model.depth={self.depth} of a ResNet must be 6 n + 2, such as 20.")
    conv = convolution(self.width, name="conv", dtype=self.dtype)
    x = nn.relu(BatchNorm(dtype=self.dtype, name="norm")(conv(images), train))
    for stage in range(STAGES):
      for block in range(blocks):
        stride = 2 if stage and not block else 1
        name = f"stage_{stage}_block_{block}"
        x = ResidualBlock(self.width << stage, stride, dtype=self.dtype, name=name)(x, train)
    vector = jnp.mean(x, axis=(1, 2), dtype=jnp.float32)
    return nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros, name=names.HEAD)(vector)


class ResidualBlock(nn.Module):
  """Two 3 x 3 convolutions beside a shortcut without parameters (option A of He et al. 2016).

  With a stride s, the shortcut takes every s-th pixel. If the output has more channels than the
  input, the shortcut has zeros in the additional channels.

  Attributes:
    width: The number of channels of the output.
    stride: The stride of the first convolution.
    dtype: The dtype of the computation.
  """

  width: int
  stride: int = 1
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """Maps (B, h, w, C) to (B, h / stride, w / stride, width)."""
    y = nn.relu(self._convolve(x, self.stride, "0", train))
    y = self._convolve(y, 1, "1", train)
    shortcut = x[:, :: self.stride, :: self.stride]
    new = self.width - x.shape[-1]
    return nn.relu(y + jnp.pad(shortcut, ((0, 0), (0, 0), (0, 0), (0, new))))

  def _convolve(self, x: jax.Array, stride: int, number: str, train: bool) -> jax.Array:
    conv = convolution(self.width, stride=stride, name=f"conv_{number}", dtype=self.dtype)
    return BatchNorm(dtype=self.dtype, name=f"norm_{number}")(conv(x), train)
