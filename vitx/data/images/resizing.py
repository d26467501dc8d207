"""Resizes images to one size on the host, by Pillow, and labeled images for batches."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings, HostInterpolation, ResizeMode, Size
from vitx.data import order
from vitx.data.dataset import Example
from vitx.data.images.decode import Encoded, to_array
from vitx.data.images.settings import sides

# The usual defaults, from torchvision's RandomResizedCrop: share of the area, width / height.
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ImageLike = np.ndarray | Image.Image
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class ResizeImages:
  """A transform that resizes the image of an example to uint8 (S, S, C), and keeps its label.

  Attributes:
    decode_size: The side S of the result, or its (height, width).
    resize_mode: One of center, squash and random, see `resize`. In evaluation, `random`
      takes the center by `resize_short_side`.
    interpolation: The interpolation: bilinear, bicubic or random.
    train: Whether the transform is for training, where `resize_mode="random"` draws a crop.
    array: The name of the array with the label: `label` is converted to int32 (), any other array
      to float32; None keeps only the image.
  """

  decode_size: Size
  resize_mode: ResizeMode = DataSettings.resize_mode
  interpolation: HostInterpolation = DataSettings.interpolation
  train: bool = True
  array: str | None = "label"

  takes_encoded: ClassVar[bool] = True

  @property
  def draws(self) -> bool:
    """Returns whether a row of a batch gets a new random crop at each step."""
    return self.train and self.resize_mode == "random"

  def __call__(self, example: Mapping[str, Any], bits: np.random.Philox | None = None) -> Example:
    image = example["image"]
    pixels = image.open() if isinstance(image, Encoded) else image
    if self.resize_mode == "random" and not self.train:
      resized = resize_short_side(pixels, self.decode_size, self.interpolation)
    else:
      resized = resize(pixels, self.decode_size, self.resize_mode, bits, self.interpolation)
    if self.array is None:
      return {"image": resized}
    if self.array != "label":
      return {"image": resized, self.array: np.asarray(example[self.array], np.float32)}
    label = np.asarray(example["label"])
    if label.ndim or label.dtype.kind not in "biu":
      raise ConfigError(
        f"data.source: a label is {label.dtype} {label.shape}, but it must be one integer."
      )
    return {"image": resized, "label": label.astype(np.int32)}


def resize(
  image: ImageLike,
  size: Size,
  mode: str,
  bits: np.random.Philox | None = None,
  interpolation: str = "bilinear",
) -> np.ndarray:
  """Resizes an image, on the host.

  Args:
    image: An array, uint8 (height, width, C), or an image of Pillow in the mode L, RGB or RGBA.
    size: The size of the result in pixels, the side of a square or (height, width).
    mode: The resize mode. `center` resizes the largest central box with the aspect ratio of the
      size; `squash` ignores the aspect ratio; `random` resizes a box of random area and aspect
      ratio. `center` and `squash` keep the pixels of an image that already has the size.
    bits: The random bits for the mode `random`, from an `order.generator` for this example alone.
    interpolation: One of bilinear, bicubic and random, all with antialiasing. random draws bilinear
      or bicubic in the mode `random`, and is bicubic in the other modes.

  Returns:
    The resized image, uint8 (size, size, C) or (height, width, C).
  """
  height, width = _shape(image)
  rows, columns = sides(size)
  if mode == "random":
    assert bits is not None
    box = draw_box(height, width, bits)
    # The crop comes first: with `box=`, pixels outside the box would affect its edge.
    cut = [plane.crop(box) for plane in _planes(image)]
    return _resample(cut, (columns, rows), _filter(interpolation, bits))
  if (height, width) == (rows, columns):
    return _as_array(image)
  across, down = float(width), float(height)
  if mode == "center":
    across, down = min(width, height * columns / rows), min(height, width * rows / columns)
  x, y = (width - across) / 2, (height - down) / 2
  part = (x, y, x + across, y + down)
  return _resample(_planes(image), (columns, rows), _filter(interpolation), part)


def resize_short_side(image: ImageLike, size: Size, interpolation: str) -> np.ndarray:
  """Resizes a whole image so that it just covers `size`, and crops the center.

  For a square this equals torchvision's Resize and CenterCrop: the short side becomes the square's
  side, and the long side and the crop's position are rounded to whole pixels. See `resize`.
  """
  height, width = before = _shape(image)
  rows, columns = sides(size)
  if height * columns <= width * rows:
    height, width = rows, rows * width // height
  else:
    height, width = columns * height // width, columns
  if (height, width) == before:
    resized = _as_array(image)
  else:
    resized = _resample(_planes(image), (width, height), _filter(interpolation))
  top, left = round((height - rows) / 2), round((width - columns) / 2)
  return resized[top : top + rows, left : left + columns]


def _shape(image: ImageLike) -> tuple[int, int]:
  """Returns the height and the width of an image."""
  return image.shape[:2] if isinstance(image, np.ndarray) else (image.height, image.width)


def _as_array(image: ImageLike) -> np.ndarray:
  """Returns the pixels of an image as they are, uint8 (height, width, C)."""
  return image if isinstance(image, np.ndarray) else to_array(image)


def _planes(image: ImageLike) -> list[Image.Image]:
  """Divides an image so that Pillow resizes no fourth channel, which it takes for transparency."""
  if isinstance(image, Image.Image):
    return [image] if image.mode in ("L", "RGB") else list(image.split())
  if image.shape[-1] == 3:
    return [Image.fromarray(image)]
  return [Image.fromarray(np.ascontiguousarray(image[..., c])) for c in range(image.shape[-1])]


def _resample(
  planes: list[Image.Image], size: tuple[int, int], how: Image.Resampling, box: Box | None = None
) -> np.ndarray:
  """Resizes images to `size`, (width, height); joins their channels, uint8 (height, width, C)."""
  return np.concatenate([to_array(plane.resize(size, how, box)) for plane in planes], axis=-1)


def _filter(interpolation: str, bits: np.random.Philox | None = None) -> Image.Resampling:
  """Returns Pillow's filter; "random" draws one from `bits`, and is bicubic without them."""
  if interpolation == "bilinear":
    return Image.Resampling.BILINEAR
  drawn = interpolation == "random" and bits is not None and order.uniform(bits, 1)[0] < 0.5
  return Image.Resampling.BILINEAR if drawn else Image.Resampling.BICUBIC


def draw_box(height: int, width: int, bits: np.random.Philox) -> tuple[int, int, int, int]:
  """Draws the (left, top, right, bottom) of a crop like torchvision's RandomResizedCrop.

  The share of the area is uniform in SCALE and the aspect ratio log-uniform in RATIO. If none of
  ten drawn boxes fits into the image, the result is the largest central box of an allowed ratio.
  """
  draws = order.uniform(bits, 40).reshape(10, 4)
  low, high = math.log(RATIO[0]), math.log(RATIO[1])
  for area_draw, ratio_draw, x, y in draws:
    area = height * width * (SCALE[0] + (SCALE[1] - SCALE[0]) * area_draw)
    ratio = math.exp(low + (high - low) * ratio_draw)
    w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    if 0 < w <= width and 0 < h <= height:
      left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
      return left, top, left + w, top + h
  w = min(width, max(1, round(height * RATIO[1])))
  h = min(height, max(1, round(width / RATIO[0])))
  left, top = (width - w) // 2, (height - h) // 2
  return left, top, left + w, top + h
