"""Decodes image files with Pillow, whose pixels do not depend on other installed libraries."""

import io
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from vitx import files
from vitx.config.checks import check_number, check_value
from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings, HostInterpolation, ResizeMode, Size, read_fields
from vitx.data import order
from vitx.data.dataset import DatasetInfo
from vitx.data.images.settings import find_size, scale_size, sides

# The usual defaults, from torchvision's RandomResizedCrop: share of the area, width / height.
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# The modes with more than 8 bits per channel, all of them gray.
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
_SIXTEEN_BITS, _TWELVE_BITS = 65535, 4095
# The transformation that turns an image upright, by its EXIF orientation.
_TURNS = {
  2: Image.Transpose.FLIP_LEFT_RIGHT,
  3: Image.Transpose.ROTATE_180,
  4: Image.Transpose.FLIP_TOP_BOTTOM,
  5: Image.Transpose.TRANSPOSE,
  6: Image.Transpose.ROTATE_270,
  7: Image.Transpose.TRANSVERSE,
  8: Image.Transpose.ROTATE_90,
}
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # tags of TIFF
# The content of a file determines its format, not its name. Only formats that Pillow decodes within
# this process are read; an EPS file would start Ghostscript.
FORMATS = ("BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
ImageLike = np.ndarray | Image.Image
ValueRange = tuple[float, float] | None


@dataclass(frozen=True)
class Encoded:
  """An encoded image from a source.

  Attributes:
    content: The bytes of the file.
    channels: The number of channels after decoding: 1 (gray), 3 (RGB) or 4 (RGBA).
    where: The path or the name of the example, for errors.
    upright: Whether to turn the image by its EXIF orientation (for the user's photographs).
    value_range: The setting `data.value_range`, see `to_mode`.
  """

  content: bytes
  channels: int
  where: str
  upright: bool = False
  value_range: ValueRange = None

  def open(self) -> Image.Image:
    """Decodes the first frame, of any of Pillow's modes, to 8 bits, see `to_mode`.

    Raises:
      ConfigError: The bytes are not a readable image, or have more pixels than
        `files.check_inflated` allows.
    """
    if files.limit() > files.DEFAULT:  # DEFAULT is Pillow's own limit
      Image.MAX_IMAGE_PIXELS = int(files.limit()) // 3
    _check_icon(self.content, self.where)
    try:
      with Image.open(io.BytesIO(self.content), formats=FORMATS) as file:
        files.check_inflated(self.where, 3 * file.width * file.height, len(self.content))
        return to_mode(file, self.channels, self.value_range, upright=self.upright)
    except ConfigError:
      raise
    except Exception as error:  # Pillow raises all kinds for damaged files
      # Pillow's message names an object in memory, which does not help a user.
      unknown = isinstance(error, UnidentifiedImageError)
      reason = f"of none of the formats {', '.join(FORMATS)}" if unknown else str(error)
      reason = reason or type(error).__name__
      if isinstance(error, Image.DecompressionBombError):
        reason += f" If you trust it, raise {files.VARIABLE} in the environment."
      raise ConfigError(
        f"{self.where} cannot be read as an image ({reason}). Replace or remove it."
      ) from error

  def decode(self) -> np.ndarray:
    """Returns the pixels of `open`, uint8 (height, width, channels)."""
    return to_array(self.open())


def _check_icon(content: bytes, where: str) -> None:
  """Raises ConfigError for a Windows icon that contains a PNG with too many pixels.

  Pillow decodes the images in an icon already when it opens the file, whatever their sizes.
  """
  if content.startswith(b"\0\0\1\0"):
    for found in re.finditer(rb"\x89PNG\r\n\x1a\n....IHDR(.{8})", content, re.DOTALL):
      width, height = struct.unpack(">II", found[1])
      files.check_inflated(where, 3 * width * height, len(content))


def decode_image(
  encoded: bytes,
  channels: int,
  where: str,
  value_range: ValueRange = None,
  *,
  upright: bool = False,
) -> np.ndarray:
  """Returns the pixels of an image file, uint8 (height, width, channels); see `Encoded`.

  Raises:
    ConfigError: The bytes are not a readable image.
  """
  return Encoded(encoded, channels, where, upright, value_range).decode()


def to_array(picture: Image.Image) -> np.ndarray:
  """Returns the pixels of a picture of 8-bit channels, uint8 (height, width, C)."""
  pixels = bytearray(picture.tobytes())  # an array of immutable bytes would be read-only
  return np.frombuffer(pixels, np.uint8).reshape(picture.height, picture.width, -1)


def to_mode(
  image: Image.Image, channels: int, value_range: ValueRange = None, *, upright: bool = False
) -> Image.Image:
  """Converts an image of any of Pillow's modes to 8 bits: the mode L, RGB or RGBA.

  For 1 and 3 channels, transparent pixels are composited on white. For 4 channels, the fourth is
  the transparency or any other fourth channel of the image, and 255 for an image without one.
  Values of more than 8 bits are scaled to 0..255 from the stated range: from 0..65535 for 16 bits,
  or from fewer bits if TIFF tags say so.

  Args:
    image: An image of Pillow.
    channels: The number of channels in the result: 1 (gray), 3 (RGB) or 4 (RGBA).
    value_range: The values of black and white in an image of more than 8 bits; None takes the range
      that the format states.
    upright: Whether to turn the image by its EXIF orientation.

  Raises:
    ValueError: The range of the values is not stated, or the values contradict it.
  """
  image.load()
  turn = _TURNS.get(_find_orientation(image)) if upright else None
  flat, mode = _flatten(image, channels, value_range), _MODES[channels]
  flat = flat if flat.mode == mode else flat.convert(mode)
  return flat if turn is None else flat.transpose(turn)


def _find_orientation(image: Image.Image) -> int:
  """Returns the EXIF orientation of an image, or 1 if EXIF cannot be read."""
  try:
    return image.getexif().get(ExifTags.Base.Orientation, 1)
  except Exception:  # damaged EXIF beside readable pixels raises many kinds
    return 1


def _flatten(image: Image.Image, channels: int, value_range: ValueRange) -> Image.Image:
  """Returns the image with 8 bits per channel, and without transparency unless 4 are wanted."""
  if image.mode in _DEEP:
    return _scale(image, value_range)
  if image.mode == "RGBX" and channels == 4:
    return Image.fromarray(np.asarray(image), "RGBA")
  direct = {"LAB": "RGB", "HSV": "RGB", "RGBX": "RGB", "La": "LA", "RGBa": "RGBA"}.get(image.mode)
  image = image if direct is None else image.convert(direct)
  if image.has_transparency_data and channels != 4:
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")
  return image


def _scale(image: Image.Image, value_range: ValueRange) -> Image.Image:
  """Converts a gray image of more than 8 bits to the mode L.

  Raises:
    ValueError: The range of the values is unknown, see `to_mode`.
  """
  values = np.asarray(image).astype(np.float64)
  if not np.isfinite(values).all():
    raise ValueError("it holds values that are not finite")
  low, high = _find_range(image, values) if value_range is None else value_range
  tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
  if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
    values = low + high - values
  shares = (values.clip(low, high) - low) / (high - low)
  return Image.fromarray(np.rint(shares * 255).astype(np.uint8))


def _find_range(image: Image.Image, values: np.ndarray) -> tuple[float, float]:
  """Returns the values of black and white that the file format states."""
  say = "set data.value_range to the values of black and white, such as"
  if not image.mode.startswith("I;16") and image.format != "PPM":
    raise ValueError(
      f"it holds numbers of the mode {image.mode!r} in {values.min():g}..{values.max():g}, whose"
      f" range its format does not state; {say} (0, 1)"
    )
  tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
  bits = tags.get(_BITS_PER_SAMPLE, (16,))[0]
  high = 2.0 ** min(bits, 16) - 1
  if high == _SIXTEEN_BITS and 0 < values.max() <= _TWELVE_BITS:
    raise ValueError(
      f"it stores 16 bits and holds no value above {values.max():g}, as images of fewer bits do;"
      f" {say} (0, {2 ** int(values.max()).bit_length() - 1}), or (0, 65535) if it is so dark"
    )
  return 0.0, high


def resize(
  image: ImageLike,
  size: Size,
  mode: str,
  bits: np.random.Philox | None = None,
  interpolation: str = "bilinear",
) -> np.ndarray:
  """Resizes an image to the size that the host keeps.

  Args:
    image: An array, uint8 (height, width, C), or an image of Pillow in the mode L, RGB or RGBA.
    size: The size of the result in pixels, the side of a square or (height, width).
    mode: The resize mode. `center` resizes the largest central box with the aspect ratio of the
      size; `squash` ignores the aspect ratio; `random` resizes a box of random area and aspect
      ratio. `center` and `squash` do not change an image that already has the size.
    bits: The random bits of this example for `random`, from its own `order.generator`.
    interpolation: One of bilinear and bicubic, with antialiasing, and random, which draws one of
      the two for a random crop and is bicubic otherwise.

  Returns:
    The resized image, uint8 (size, size, C) or (height, width, C).

  Raises:
    ConfigError: The mode or the interpolation is unknown.
    ValueError: The mode is `random` and `bits` is None.
  """
  height, width = _shape(image)
  rows, columns = sides(size)
  if mode == "random":
    if bits is None:
      raise ValueError("resize_mode='random' needs the random bits of the example")
    left, top, right, bottom = map(int, draw_box(height, width, bits))
    # The crop comes first, because with `box=` pixels beside the box would affect its edge.
    cut = _crop(image, left, top, right, bottom)
    return _resample(cut, (columns, rows), _filter(interpolation, bits))
  if mode == "squash":
    box = (0.0, 0.0, float(width), float(height))
  else:
    check_value(mode, "data.resize_mode", ResizeMode)
    across, down = min(width, height * columns / rows), min(height, width * rows / columns)
    x, y = (width - across) / 2, (height - down) / 2
    box = (x, y, x + across, y + down)
  if (height, width) == (rows, columns):
    return image if isinstance(image, np.ndarray) else to_array(image)
  return _resample(image, (columns, rows), _filter(interpolation), box)


def resize_short_side(image: ImageLike, size: Size, interpolation: str) -> np.ndarray:
  """Resizes a whole image so that it just covers `size`, and crops the center.

  For a square this equals torchvision's Resize and CenterCrop: the short side becomes the square's
  side, and the long side and the crop's position are rounded to whole pixels.

  Args:
    image: The image, see `resize`.
    size: The size of the result, see `resize`.
    interpolation: The interpolation, see `resize`.

  Returns:
    The resized image, uint8 (size, size, C) or (height, width, C).
  """
  height, width = own = _shape(image)
  rows, columns = sides(size)
  if height * columns <= width * rows:
    height, width = rows, rows * width // height
  else:
    height, width = columns * height // width, columns
  if (height, width) != own:
    image = _resample(image, (width, height), _filter(interpolation))
  top, left = round((height - rows) / 2), round((width - columns) / 2)
  array = image if isinstance(image, np.ndarray) else to_array(image)
  return array[top : top + rows, left : left + columns]


def _crop(image: ImageLike, left: int, top: int, right: int, bottom: int) -> ImageLike:
  if isinstance(image, np.ndarray):
    return image[top:bottom, left:right]
  return image.crop((left, top, right, bottom))


def _resample(
  image: ImageLike,
  size: tuple[int, int],
  how: Image.Resampling,
  box: tuple[float, float, float, float] | None = None,
) -> np.ndarray:
  """Resizes an image to (width, height); returns uint8 (height, width, C).

  Channels of images other than gray and RGB are resized separately, because Pillow would interpret
  a fourth channel as transparency and weight the others by it.
  """
  if _channels(image) in (1, 3):
    return to_array(to_picture(image).resize(size, how, box))
  array = image if isinstance(image, np.ndarray) else to_array(image)
  parts = [Image.fromarray(np.ascontiguousarray(array[..., c])) for c in range(array.shape[-1])]
  return np.stack([np.asarray(part.resize(size, how, box)) for part in parts], axis=-1)


def _channels(image: ImageLike) -> int:
  return image.shape[-1] if isinstance(image, np.ndarray) else len(image.getbands())


def _filter(interpolation: str, bits: np.random.Philox | None = None) -> Image.Resampling:
  """Returns Pillow's filter; random is drawn from `bits`, or is bicubic without them."""
  if interpolation == "bilinear":
    return Image.Resampling.BILINEAR
  check_value(interpolation, "data.interpolation", HostInterpolation)
  drawn = interpolation == "random" and bits is not None and order.uniform(bits, 1)[0] < 0.5
  return Image.Resampling.BILINEAR if drawn else Image.Resampling.BICUBIC


def to_picture(image: ImageLike) -> Image.Image:
  """Converts an image to an image of Pillow."""
  if isinstance(image, Image.Image):
    return image
  return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def _shape(image: ImageLike) -> tuple[int, int]:
  """Returns the (height, width) of an image."""
  return image.shape[:2] if isinstance(image, np.ndarray) else (image.height, image.width)


def draw_box(height: int, width: int, bits: np.random.Philox) -> tuple[float, float, float, float]:
  """Draws the (left, top, right, bottom) of a crop like torchvision's RandomResizedCrop.

  The area is uniform in SCALE and the aspect ratio log-uniform in RATIO. If ten attempts do not fit
  the image, the result is the largest central box of an allowed ratio.
  """
  draws = order.uniform(bits, 40).reshape(10, 4)
  low, high = math.log(RATIO[0]), math.log(RATIO[1])
  for area_draw, ratio_draw, x, y in draws:
    area = height * width * (SCALE[0] + (SCALE[1] - SCALE[0]) * area_draw)
    ratio = math.exp(low + (high - low) * ratio_draw)
    w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    if 0 < w <= width and 0 < h <= height:
      left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
      return (float(left), float(top), float(left + w), float(top + h))
  w = min(width, max(1, round(height * RATIO[1])))
  h = min(height, max(1, round(width / RATIO[0])))
  left, top = (width - w) // 2, (height - h) // 2
  return (float(left), float(top), float(left + w), float(top + h))


def decode_size(data: Mapping[str, Any], info: DatasetInfo, crop_ratio: float) -> Size:
  """Returns the size of the images that the host keeps, in pixels, in the form of `image_size`.

  It is `data.decode_size` if set; else, if all images share one size, the largest part of it with
  the aspect ratio of `data.image_size`; else image_size / crop_ratio, which the evaluation needs.

  Args:
    data: The config's `data`.
    info: The facts about the data set.
    crop_ratio: The value of `evaluation.crop_ratio`.

  Raises:
    ConfigError: The images vary in size and the config has no size, or a field is out of range.
  """
  settings = read_fields(DataSettings, data)
  if settings.decode_size is not None:
    return settings.decode_size
  own = find_size(info)
  if own is not None:
    if settings.image_size is None or isinstance(settings.image_size, int):
      return min(own)
    height, width = settings.image_size
    if own[0] * width <= own[1] * height:
      return scale_size(settings.image_size, own[0], height)
    return scale_size(settings.image_size, own[1], width)
  if settings.image_size is None:
    raise ConfigError(
      f"data.image_size=None: the images of {info.name!r} vary in size."
      " Set data.image_size to the side the model sees, for example data.image_size=224, or to"
      " (height, width)."
    )
  ratio = check_number(crop_ratio, "evaluation.crop_ratio", "(0, 1]")
  return scale_size(settings.image_size, 1, ratio)
