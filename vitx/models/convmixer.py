"""ConvMixer: a network of patches with convolutions in place of the token mixer and the MLP."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.blocks.stems import LinearStem
from vitx.config.checks import Depth, PositiveInt
from vitx.layers.convolution import Conv
from vitx.layers.depthwise import DepthwiseConvolution, KernelSide
from vitx.layers.mlp import gelu
from vitx.layers.norms import BatchNorm
from vitx.models import names


class ConvMixer(nn.Module):
  """ConvMixer (Trockman and Kolter 2022, section 2).

  Batch statistics are taken over the whole batch, also on several devices.

  Attributes:
    num_classes: The number of outputs of the head.
    width: The number of channels C.
    depth: The number of layers L.
    patch: The side of a patch in pixels.
    kernel: The side of the depthwise convolutions, odd.
    dtype: The dtype of the computation; parameters and statistics are float32.
  """

  num_classes: int
  width: PositiveInt = 256
  depth: Depth = 8
  patch: PositiveInt = 2
  kernel: KernelSide = 5
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes).

    Args:
      images: The images, (B, height, width, channels), normalized floats.
      train: Whether statistics are taken from the batch; the collection "batch_stats" must then be
        mutable.
    """

    def activate(y: jax.Array, name: str) -> jax.Array:
      y = gelu(y)
      return BatchNorm(dtype=self.dtype, name=f"{name}_norm")(y, train)

    stem = LinearStem(self.width, self.patch, dtype=self.dtype, name=names.STEM)
    x = activate(stem(images), names.STEM)
    for layer in range(self.depth):
      depthwise = DepthwiseConvolution(self.kernel, dtype=self.dtype, name=f"depthwise_{layer}")
      pointwise = Conv(self.width, (1, 1), dtype=self.dtype, name=f"pointwise_{layer}")
      x = x + activate(depthwise(x), f"depthwise_{layer}")
      x = activate(pointwise(x), f"pointwise_{layer}")
    vector = jnp.mean(x, axis=(1, 2), dtype=jnp.float32)
    return nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros, name=names.HEAD)(vector)
