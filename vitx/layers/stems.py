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


def one_each(strides: Sequence[int], channels: Sequence[int], more: str = "") -> tuple[int, ...]:
  """The stride of each convolution; empty: all 1.

  Raises:
    ConfigError: there are not as many as convolutions.
  """
  if strides and len(strides) != len(channels):
    raise ConfigError(
      f"model.stem.strides={tuple(strides)} must have one entry for each of model.stem.channels"
      f"={tuple(channels)}{more}"
    )
  return tuple(strides) or (1,) * len(channels)


class LinearStem(nn.Module):
  """Patches, each projected linearly (Dosovitskiy et al. 2021, equation 1).

  Attributes:
    width: C.
    patch: side of a patch in pixels.
    stride: from patch to patch; none: `patch`, so that they do not overlap (PiT's do).
    dtype: of the computation.
  """

  width: int
  patch: int = 4
  stride: int | None = None
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    check_divisible(images, self.patch)
    stride = self.patch if self.stride is None else self.stride
    return nn.Conv(
      self.width,
      (self.patch, self.patch),
      strides=(stride, stride),
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
    strides = one_each(self.strides, self.channels)
    x = images
    for i, (channels, stride) in enumerate(zip(self.channels, strides, strict=True)):
      # Padding by one pixel, as PyTorch has it: "SAME" pads strided convolutions on one side only.
      conv = nn.Conv(
        channels, (3, 3), (stride, stride), padding=1, dtype=self.dtype, name=f"conv_{i}"
      )
      x = nn.gelu(conv(x))
    return LinearStem(self.width, self.patch, dtype=self.dtype, name="patches")(x)


class HybridStem(nn.Module):
  """Bare convolutions, one after another: nothing between them and nothing after the last.

  The hybrid stem of ViX (Jeevan and Sethi 2022, section 3), LeViT's as vit-pytorch has it and, with
  a single convolution, CvT's embedding.

  Attributes:
    width: C, the channels of the last convolution.
    channels: of the convolutions before it.
    strides: of each convolution, the last included; empty: all 1.
    kernel: side of each; half of it is padded around the image.
    dtype: of the computation.
  """

  width: int
  channels: Sequence[int] = (32, 64)
  strides: Sequence[int] = ()
  kernel: int = 3
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    widths = (*self.channels, self.width)
    strides = one_each(self.strides, widths, " (the last is model.width)")
    size, x = (self.kernel, self.kernel), images
    for i, (channels, stride) in enumerate(zip(widths, strides, strict=True)):
      x = nn.Conv(
        channels,
        size,
        (stride, stride),
        padding=self.kernel // 2,
        dtype=self.dtype,
        name=f"conv_{i}",
      )(x)
    return x


class CCTTokenizer(nn.Module):
  """Convolutions without bias, each with ReLU and a maximum over windows (Hassani et al. 2021).

  Attributes:
    width: C, the channels of the last convolution.
    channels: of the convolutions before it.
    strides: of each convolution, the last included; empty: all 1.
    kernel: side of each.
    pool: side of the windows.
    pool_stride: from window to window.
    dtype: of the computation.
  """

  width: int
  channels: Sequence[int] = (64,)
  strides: Sequence[int] = ()
  kernel: int = 3
  pool: int = 3
  pool_stride: int = 2
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    widths = (*self.channels, self.width)
    strides = one_each(self.strides, widths, " (the last is model.width)")
    size, x = (self.kernel, self.kernel), images
    around = (self.pool // 2, self.pool // 2)
    for i, (channels, stride) in enumerate(zip(widths, strides, strict=True)):
      conv = nn.Conv(
        channels,
        size,
        (stride, stride),
        padding=self.kernel // 2,
        use_bias=False,
        dtype=self.dtype,
        name=f"conv_{i}",
      )
      window, step = (self.pool, self.pool), (self.pool_stride, self.pool_stride)
      x = nn.max_pool(nn.relu(conv(x)), window, step, padding=(around, around))
    return x


STEMS = {"linear": LinearStem, "conv": ConvStem, "hybrid": HybridStem, "cct": CCTTokenizer}
