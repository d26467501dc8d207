"""Stems, which turn images (B, height, width, channels) into token grids (B, rows, columns, C)."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.config.checks import PositiveInt, Range
from vitx.config.errors import ConfigError
from vitx.layers.convolution import Conv
from vitx.layers.norms import BatchNorm
from vitx.ops.kernels.pooling import max_pool

WindowSide = Annotated[int, Range("[1, 63]")]  # of a convolution or of pooling, even or odd


class LinearStem(nn.Module):
  """Patches, each projected linearly (Dosovitskiy et al. 2021, equation 1).

  Attributes:
    width: The number of channels C of a token.
    patch: The side of a patch in pixels.
    stride: The step from patch to patch in pixels; `None` means `patch`, that is, no overlap.
      (PiT's patches overlap.)
    dtype: The dtype of the computation.
  """

  width: int
  patch: PositiveInt = 4
  stride: PositiveInt | None = None
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps images (B, height, width, channels) to a grid of tokens (B, rows, columns, C)."""
    stride = self.patch if self.stride is None else self.stride
    _check_patch(self.patch, images, stride)
    embed = square_convolution(
      self.width,
      self.patch,
      stride,
      padding="VALID",
      kernel_init=nn.initializers.xavier_uniform(),
      dtype=self.dtype,
      name="embed",
    )
    return embed(images)


def _check_patch(patch: int, images: jax.Array, stride: int) -> None:
  """Refuses images (B, height, width, channels) that patches would cut off."""
  height, width = images.shape[1:3]
  if any(side < patch or (side - patch) % stride for side in (height, width)):
    below = patch + max(min(height, width) - patch, 0) // stride * stride
    step = "" if stride == patch else f" at a stride of {stride}"
    raise ConfigError(
      f"model.stem.patch={patch}{step} does not divide the image of {height} x {width} pixels that"
      f" reaches it; set data.image_size to a size such as {below} or {below + stride},"
      " or choose another patch."
    )


# The (rows, columns) by which shifted patch tokenization moves the image, in units of the shift.
_CARDINAL = ((0, 1), (0, -1), (1, 0), (-1, 0))
_DIAGONAL = ((1, 1), (1, -1), (-1, 1), (-1, -1))
_SHIFTS = {"cardinal": _CARDINAL, "diagonal": _DIAGONAL, "all": _CARDINAL + _DIAGONAL}


class ShiftedPatchStem(nn.Module):
  """Shifted patch tokenization, for small data sets (Lee et al. 2021, arXiv 2112.13492).

  The image and shifted copies of it are stacked as channels, so that each patch also contains the
  pixels around it; the pixels beyond the image are zero. Patches are layer-normalized and then
  projected linearly. The authors' code has all choices of `directions`, and the defaults here are
  its defaults. In vit-pytorch the directions are cardinal, and the shift is 1.

  Attributes:
    width: The number of channels C of a token.
    patch: The side of a patch in pixels.
    shift: The distance of a shift in pixels; `None` means half a patch, rounded down.
    directions: The directions of the shifts: the 4 "diagonal" or the 4 "cardinal" ones, or "all" 8.
    dtype: The dtype of the computation.
  """

  width: int
  patch: PositiveInt = 4
  shift: PositiveInt | None = None
  directions: Literal["diagonal", "cardinal", "all"] = "diagonal"
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps images (B, height, width, channels) to a grid of tokens (B, rows, columns, C)."""
    patch, (batch, height, width, _) = self.patch, images.shape
    _check_patch(patch, images, patch)
    shift = patch // 2 if self.shift is None else self.shift
    if not 0 < shift < min(height, width):
      raise ConfigError(f"model.stem.shift={shift} moves no pixel, or all out of the image.")
    padded = jnp.pad(images, [(0, 0), (shift, shift), (shift, shift), (0, 0)])
    starts = [
      (shift - down * shift, shift - across * shift) for down, across in _SHIFTS[self.directions]
    ]
    copies = [padded[:, y : y + height, x : x + width] for y, x in starts]
    stacked = jnp.concatenate([images, *copies], axis=-1)
    cut = stacked.reshape(batch, height // patch, patch, width // patch, patch, stacked.shape[-1])
    patches = jnp.swapaxes(cut, 2, 3).reshape(batch, height // patch, width // patch, -1)
    patches = nn.LayerNorm(epsilon=1e-5, dtype=self.dtype, name="norm")(patches)
    init = nn.initializers.xavier_uniform()
    return nn.Dense(self.width, kernel_init=init, dtype=self.dtype, name="embed")(patches)


def square_convolution(width: int, kernel: int, stride: int = 1, **fields: Any) -> nn.Conv:
  """Makes a convolution with a square kernel, by default padded by half the kernel.

  Args:
    width: The number of channels of the output.
    kernel: The side of the kernel.
    stride: The stride along both axes.
    **fields: Other fields of `nn.Conv`.
  """
  # The padding is a number, as in PyTorch: "SAME" pads strided convolutions on one side only.
  settings = {"padding": kernel // 2, **fields}
  return Conv(width, (kernel, kernel), (stride, stride), **settings)


class _Convolutions(nn.Module):
  """The base class of stems that begin with a sequence of convolutions.

  Attributes:
    width: The number of channels C of a token.
    channels: The output channels of each convolution.
    strides: The stride of each convolution; empty means all 1.
    dtype: The dtype of the computation.
  """

  width: int
  channels: tuple[PositiveInt, ...] = (32, 64)
  strides: tuple[PositiveInt, ...] = ()
  dtype: DTypeLike = jnp.float32

  def convolve(
    self,
    x: jax.Array,
    kernel: int,
    *,
    to_width: bool = True,
    use_bias: bool = True,
    after: Callable[[jax.Array], jax.Array] = lambda y: y,
  ) -> jax.Array:
    """Applies the convolutions `conv_0`, `conv_1`, ... one after another.

    Args:
      x: The images or feature maps, (B, height, width, channels).
      kernel: The side of the kernels.
      to_width: Whether there is one more convolution, to `width` channels.
      use_bias: Whether the convolutions have biases.
      after: A function that is applied to the output of each convolution.
    """
    widths = (*self.channels, self.width) if to_width else tuple(self.channels)
    strides = tuple(self.strides) or (1,) * len(widths)
    for i, (width, stride) in enumerate(zip(widths, strides, strict=True)):
      fields = {"use_bias": use_bias, "dtype": self.dtype, "name": f"conv_{i}"}
      x = after(square_convolution(width, kernel, stride, **fields)(x))
    return x


class ConvStem(_Convolutions):
  """3 x 3 convolutions with GELU, then a linear projection of patches (cf. Xiao et al. 2021).

  Attributes:
    width: The number of channels C of a token.
    channels: The output channels of each convolution.
    strides: The stride of each convolution; empty means all 1.
    patch: The side of the patches of the last feature map.
    dtype: The dtype of the computation.
  """

  patch: PositiveInt = 1

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps images (B, height, width, channels) to a grid of tokens (B, rows, columns, C)."""
    x = self.convolve(images, 3, to_width=False, after=nn.gelu)
    return LinearStem(self.width, self.patch, dtype=self.dtype, name="patches")(x)


class HybridStem(_Convolutions):
  """A sequence of convolutions, without an activation or a normalization.

  This is the hybrid stem of ViX (Jeevan and Sethi 2022, section 3), the stem of LeViT in
  vit-pytorch and, with a single convolution, CvT's embedding.

  Attributes:
    width: The number of channels C of the last convolution.
    channels: The output channels of the convolutions before the last.
    strides: The stride of each convolution, the last included; empty means all 1.
    kernel: The side of each convolution's kernel; its input is padded by half of it.
    dtype: The dtype of the computation.
  """

  kernel: WindowSide = 3

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps images (B, height, width, channels) to a grid of tokens (B, rows, columns, C)."""
    return self.convolve(images, self.kernel)


class CCTTokenizer(HybridStem):
  """Convolutions without bias, each followed by ReLU and max pooling (Hassani et al. 2021).

  Attributes:
    channels: The output channels of the convolutions before the last, which has `width`.
    strides: The stride of each convolution, the last included; empty means all 1.
    kernel: The side of each convolution's kernel; its input is padded by half of it.
    pool: The side of the pooling windows.
    pool_stride: The step from one pooling window to the next.
  """

  channels: tuple[PositiveInt, ...] = (64,)
  pool: WindowSide = 3
  pool_stride: PositiveInt = 2

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps images (B, height, width, channels) to a grid of tokens (B, rows, columns, C)."""

    def pool(y: jax.Array) -> jax.Array:
      return max_pool(nn.relu(y), self.pool, self.pool_stride, self.pool // 2)

    return self.convolve(images, self.kernel, use_bias=False, after=pool)


class NormalizedStem(nn.Module):
  """Convolutions, each with batch normalization and ReLU, then patches (Jiang et al. 2021).

  This is LV-ViT's stem "4_2", which divides the sides of the image by 2 and then by 8.

  `whitening=2` adds a first convolution of patches of 2 x 2 pixels, without padding. A new run sets
  its kernel from the training images: the outputs are uncorrelated and have a variance of 1, and
  each is there with both signs (Jordan 2024, arXiv 2404.00498, section 3.2). Its bias begins at 0.
  `freeze=("stem/whitening/kernel",)` keeps the kernel.

  Attributes:
    width: The number of channels C of a token.
    channels: The output channels of each convolution.
    kernels: The side of each convolution's kernel; its input is padded by half of it.
    strides: The stride of each convolution.
    patch: The side of the patches of the last feature map.
    whitening: The side of the patches that are whitened; 0 adds no convolution.
    dtype: The dtype of the computation; batch statistics are float32.
  """

  width: int
  channels: tuple[PositiveInt, ...] = (64, 64, 64)
  kernels: tuple[WindowSide, ...] = (7, 3, 3)
  strides: tuple[PositiveInt, ...] = (2, 1, 1)
  patch: PositiveInt = 8
  whitening: Annotated[int, Range("[0, 7]")] = 0
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
    """Maps images (B, height, width, channels) to a grid of tokens (B, rows, columns, C)."""
    x, settings = images, zip(self.channels, self.kernels, self.strides, strict=True)
    if side := self.whitening:
      whiten = square_convolution(
        2 * side**2 * x.shape[-1], side, padding="VALID", dtype=self.dtype, name="whitening"
      )
      x = nn.relu(whiten(x))
    for i, (channels, kernel, stride) in enumerate(settings):
      fields = {"use_bias": False, "dtype": self.dtype, "name": f"conv_{i}"}
      conv = square_convolution(channels, kernel, stride, **fields)
      x = nn.relu(BatchNorm(dtype=self.dtype, name=f"norm_{i}")(conv(x), train))
    return LinearStem(self.width, self.patch, dtype=self.dtype, name="patches")(x)


STEMS = {
  "cct": CCTTokenizer,
  "conv": ConvStem,
  "hybrid": HybridStem,
  "linear": LinearStem,
  "normalized": NormalizedStem,
  "shifted_patch": ShiftedPatchStem,
}
