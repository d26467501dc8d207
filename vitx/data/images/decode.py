"""Decodes image files on the host.

It uses Pillow, whose pixels do not depend on other installed libraries.
"""

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from absl import logging
from PIL import ExifTags, IcoImagePlugin, Image

from vitx.config.errors import ConfigError, importing
from vitx.config.fields import DataSettings, Size
from vitx.data.dataset import DatasetInfo, Example
from vitx.data.images.settings import FILE_MODES, find_size, scale_size, sides
from vitx.files import reading

# The modes with more than 8 bits per channel, all of them gray.
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
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
_UNSCALED = ("PNG", "TIFF", None)  # formats whose values Pillow does not scale to 16 bits
# The bit lengths of the largest values about which a line was logged in this process.
_reported: set[int] = set()
# The format of a file is found in its content, not in its name. Only formats that Pillow decodes
# within this process are read; an EPS file would start Ghostscript.
FORMATS = ("BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
ValueRange = tuple[float, float] | None


@dataclass(frozen=True)
class Encoded:
  """The bytes of an image file, with the settings for decoding it, see `to_mode`.

  Attributes:
    where: The path or the name of the example, for errors.
    upright: Whether to turn the image by its EXIF orientation (for the user's photographs).
  """

  content: bytes
  channels: int
  where: str
  upright: bool = False
  value_range: ValueRange = None

  def open(self) -> Image.Image:
    """Decodes the first frame to an image of Pillow in the mode L, RGB or RGBA, see `to_mode`."""
    formats = _find_formats(self.content, self.where)
    problem = f"{self.where} cannot be read as an image of the formats {', '.join(formats)}"
    with reading(problem), Image.open(io.BytesIO(self.content), formats=formats) as file:
      file.filename = self.where  # for the line about its values
      return to_mode(file, self.channels, self.value_range, upright=self.upright)

  def moment(self) -> str:
    """Returns the camera and the minute of a photo by its EXIF; "" if it does not state both.

    Cameras whose clock was never set write zeros or blanks.
    """
    content = io.BytesIO(self.content)
    with contextlib.suppress(Exception), Image.open(content, formats=FORMATS) as file:
      exif = file.getexif()  # see `_find_orientation`
      taken = exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal]
      return f"{exif[ExifTags.Base.Model]}, {taken[:16]}" if taken.strip("0: ") else ""
    return ""

  def decode(self) -> np.ndarray:
    """Decodes the first frame to an array, uint8 (height, width, channels), as `open` does."""
    return to_array(self.open())


def _find_formats(content: bytes, where: str) -> tuple[str, ...]:
  """Returns the formats that a file may have; HEIF, by its fifth to eighth byte, needs an extra."""
  if content[4:8] != b"ftyp":
    return FORMATS
  with importing(f"Reading the photo {where}", "heif"):
    import pillow_heif
  pillow_heif.register_heif_opener()
  return ("HEIF",)


def decode_example(example: Mapping[str, Any]) -> Example:
  """Returns an example with the pixels of its image instead of an `Encoded` image."""
  return {**example, "image": example["image"].decode()}


def to_array(picture: Image.Image) -> np.ndarray:
  """Returns the pixels of a Pillow image of 8-bit channels, uint8 (height, width, C)."""
  return np.array(picture).reshape(picture.height, picture.width, -1)


def to_mode(
  image: Image.Image, channels: int, value_range: ValueRange = None, *, upright: bool = False
) -> Image.Image:
  """Converts an image of any of Pillow's modes to the mode L, RGB or RGBA, of 8 bits per channel.

  For 1 and 3 channels, transparent pixels are composited on white. For 4 channels, the fourth
  channel is the image's transparency, or its fourth channel in the mode RGBX, or otherwise 255.
  Values of more than 8 bits are scaled to 0..255 from `value_range` or, if it is None, from the
  range that the file states: 0..65535 for 16 bits, or less if TIFF's tags or PNG's chunk sBIT state
  fewer bits. A line is logged if the values of a file that states no range need fewer than 16 bits.

  Args:
    image: An image of Pillow.
    channels: The number of channels in the result: 1 (gray), 3 (RGB) or 4 (RGBA).
    value_range: The values of black and white in an image of more than 8 bits; None takes the range
      that the file states.
    upright: Whether to turn the image by its EXIF orientation.
  """
  if isinstance(image, IcoImagePlugin.IcoImageFile):  # Pillow drops its transparent color
    image = image.ico.getimage(image.size)
  _scale_transparency(image)
  bits = _find_bits(image)  # `load` closes the file
  tile: Any = (getattr(image, "tile", None) or [None])[0]
  if value_range and image.mode == "I" and tile and tile.codec_name.startswith("ppm"):
    _, white = tile.args  # the white of a PGM file, which Pillow scales to 65535
    value_range = value_range[0] * 65535 / white, value_range[1] * 65535 / white
  is_deep_color = image.mode in ("RGB", "RGBA") and ";16" in str(getattr(image, "tile", ""))
  image.load()
  if is_deep_color:
    _check_color(image, value_range)
  turn = _TURNS.get(_find_orientation(image)) if upright else None
  if image.mode in _DEEP:
    image = _scale(image, value_range or _find_range(image, bits))
  flat, mode = _flatten(image, channels), FILE_MODES[channels]
  flat = flat if flat.mode == mode else flat.convert(mode)
  return flat if turn is None else flat.transpose(turn)


def _scale_transparency(image: Image.Image) -> None:
  """Scales the transparent value of a PNG file to 8 bits, as Pillow does with the pixels alone."""
  value = image.info.get("transparency")
  mode = next((str(tile[3]) for tile in getattr(image, "tile", ())), "")  # of the stored pixels
  if mode in ("L;2", "L;4") and value is not None:
    image.info["transparency"] = value * 255 // (2 ** int(mode[-1]) - 1)
  elif mode == "RGB;16B" and value is not None:
    image.info["transparency"] = tuple(channel >> 8 for channel in value)


def _find_orientation(image: Image.Image) -> int:
  """Returns the EXIF orientation of an image, or 1 if EXIF cannot be read."""
  try:
    return image.getexif().get(ExifTags.Base.Orientation, 1)
  except Exception:  # damaged EXIF, though pixels are readable, raises many kinds of errors
    return 1


def _check_color(image: Image.Image, value_range: ValueRange) -> None:
  """Refuses a range for a file of 16-bit colors, and logs a line about colors of fewer bits."""
  if value_range is not None:
    raise ValueError("its colors have 16 bits, but data.value_range is for gray images; convert it")
  bits = 8 + int(np.asarray(image)[..., :3].max()).bit_length()  # Pillow keeps the upper 8
  if bits < 16 and bits not in _reported:
    _reported.add(bits)
    logging.warning(
      "%s: its 16-bit colors are below %d, and 0..65535 is read. If white is another value, convert"
      " the image to 8 bits",
      *(getattr(image, "filename", "") or "an image", 2**bits),
    )


def _find_bits(image: Image.Image) -> int:
  """Returns the number of significant bits that the chunk sBIT of a PNG file states, or else 16."""
  file = getattr(image, "fp", None) if getattr(image, "tile", ()) else None  # None: it is loaded
  if image.format != "PNG" or image.mode != "I;16" or file is None:
    return 16
  file.seek(8)  # the first chunk; `load` finds the pixels wherever the file is
  while (head := file.read(8))[4:] not in (b"sBIT", b"IDAT", b""):
    file.seek(int.from_bytes(head[:4], "big") + 4, io.SEEK_CUR)  # behind content and checksum
  return file.read(1)[0] if head[4:] == b"sBIT" else 16


def _flatten(image: Image.Image, channels: int) -> Image.Image:
  """Returns an image with 8 bits per channel, and without transparency unless `channels` is 4."""
  if image.mode == "RGBX" and channels == 4:
    return Image.fromarray(np.asarray(image), "RGBA")
  direct = {"LAB": "RGB", "HSV": "RGB", "RGBX": "RGB", "La": "LA", "RGBa": "RGBA"}.get(image.mode)
  image = image if direct is None else image.convert(direct)
  if image.has_transparency_data and channels != 4:
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")
  return image


def _scale(image: Image.Image, value_range: tuple[float, float]) -> Image.Image:
  """Converts a gray image of more than 8 bits to the mode L, or LA if a value is transparent."""
  values = np.asarray(image).astype(np.float64)
  if not np.isfinite(values).all():
    raise ValueError("some of its values are not finite")
  low, high = value_range
  tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
  if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
    values = low + high - values
  shares = (values.clip(low, high) - low) / (high - low)
  gray = Image.fromarray(np.rint(shares * 255).astype(np.uint8))
  if "transparency" in image.info:
    gray.putalpha(Image.fromarray(np.asarray(image) != image.info["transparency"]).convert("L"))
  return gray


def _find_range(image: Image.Image, bits: int) -> tuple[float, float]:
  """Returns the values of black and white that a file states; `bits` are those of `_find_bits`."""
  values = np.asarray(image)
  if not image.mode.startswith("I;16") and image.format != "PPM":
    raise ValueError(
      f"its values, of the mode {image.mode!r}, are in {values.min():g}..{values.max():g}; set"
      " data.value_range to those of black and white, which its format does not define"
    )
  tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
  stored, largest = min(tags.get(_BITS_PER_SAMPLE, (16,))[0], 16), int(values.max())
  if bits < 16 and largest < 2**bits:
    # PNG asks for values scaled to 16 bits, whose lowest bits are nearly 0 in so dark an image, but
    # some programs store values of fewer bits as they are.
    step = 2 ** (16 - bits)
    stored = 16 if (values % step < max(1, step / 4)).all() else bits
  size = largest.bit_length()
  if bits == stored == 16 > size > 0 and size not in _reported and image.format in _UNSCALED:
    _reported.add(size)
    logging.warning(
      "%s: its largest 16-bit value is %d, and 0..65535 is read. If white is another value, set"
      " data.value_range, such as to (0, %d)",
      *(getattr(image, "filename", "") or "an image", largest, 2**size - 1),
    )
  return 0.0, 2.0**stored - 1


def decode_size(data: DataSettings, info: DatasetInfo, crop_ratio: float) -> Size:
  """Returns the size in pixels to which the host resizes images: a side or (height, width).

  It is `data.decode_size` if this is set. Otherwise, if all images have one size, it is the largest
  size with the aspect ratio of `data.image_size` that fits into the images. If the images vary in
  size, it is image_size / crop_ratio, the size that evaluation needs.

  Args:
    data: The config's `data`.
    info: The facts about the data set.
    crop_ratio: The value of `evaluation.crop_ratio`.
  """
  stored, size = find_size(info), data.image_size
  if data.decode_size is not None:
    return data.decode_size
  if stored is not None:
    height, width = sides(size or 1)
    by_height = stored[0] * width <= stored[1] * height
    return scale_size(size or 1, *((stored[0], height) if by_height else (stored[1], width)))
  if size is None:
    raise ConfigError(
      f"data.image_size=None: the images of {info.name!r} vary in size. Set data.image_size to the"
      " side of the model's input, such as 224, or to (height, width)."
    )
  return scale_size(size, 1, crop_ratio)
