"""Stems: from an image (B, height, width, channels) to a grid of tokens (B, rows, columns, C)."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.errors import ConfigError

Dtype = jax.typing.DTypeLike


def check_divisible(images: jax.Array, patch: int) -> None:
  """Raises ConfigError if the image does not split into patches; names sizes that do."""
  height, width = images.shape[1:3]
  if height % patch or width % patch:
    below = max(patch, min(height, width) // patch * patch)
    raise ConfigError(
      f"model.stem.patch={patch} does not divide the image of {height} x {width} pixels that"
      f" reaches it; set data.image_size to a multiple such as {below} or {below + patch}, or"
      " another patch"
    )


class LinearStem(nn.Module):
  """Non-overlapping patches, each projected linearly (Dosovitskiy et al. 2021, equation 1).

  Attributes:
    width: C.
    patch: side of a patch in pixels.
    dtype: of the computation.
  """

  width: int
  patch: int = 4
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    check_divisible(images, self.patch)
    size = (self.patch, self.patch)
    return nn.Conv(
      self.width,
      size,
      strides=size,
      padding="VALID",
      kernel_init=nn.initializers.xavier_uniform(),
      dtype=self.dtype,
      name="embed",
    )(images)


class ConvStem(nn.Module):
  """3 x 3 convolutions with GELU, then a linear projection of patches (cf. Xiao et al. 2021).

  Attributes:
    width: C.
    channels: output channels of each convolution.
    strides: of each convolution; empty: all 1.
    patch: side of the patches of the last feature map.
    dtype: of the computation.
  """

  width: int
  channels: Sequence[int] = (32, 64)
  strides: Sequence[int] = ()
  patch: int = 1
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    strides = tuple(self.strides) or (1,) * len(self.channels)
    if len(strides) != len(self.channels):
      raise ConfigError(
        f"model.stem.strides={tuple(self.strides)} must have one entry for each of"
        f" model.stem.channels={tuple(self.channels)}"
      )
    x = images
    for i, (channels, stride) in enumerate(zip(self.channels, strides, strict=True)):
      # Padding by one pixel, as PyTorch has it: "SAME" pads strided convolutions on one side only.
      conv = nn.Conv(
        channels, (3, 3), (stride, stride), padding=1, dtype=self.dtype, name=f"conv_{i}"
      )
      x = nn.gelu(conv(x))
    return LinearStem(self.width, self.patch, dtype=self.dtype, name="patches")(x)


STEMS = {"linear": LinearStem, "conv": ConvStem}
