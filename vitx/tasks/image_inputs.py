"""Reads images that a user gives for prediction: files, Pillow images, arrays."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from vitx.data.images.decode import Encoded, ValueRange, to_array, to_mode
from vitx.files import reading


def read_image(
  entry: Any, channels: int, number: int, value_range: ValueRange = None
) -> np.ndarray | None:
  """Returns an image as uint8 (height, width, C); None if it is no image, such as an `.npz` file.

  Args:
    entry: The path of an image file of any mode, a Pillow image, or an array (see `check_image`).
    channels: The number of channels C.
    number: The number of the image among the inputs, for errors.
    value_range: The range of the image's values, `data.value_range`; see `decode.to_mode`.

  Raises:
    ConfigError: A file cannot be read.
    ValueError: `check_image` refuses an array.
  """
  if isinstance(entry, Image.Image):
    return to_array(to_mode(entry, channels, value_range, upright=True))
  if isinstance(entry, np.ndarray | jax.Array):
    return check_image(np.asarray(entry), channels, number)
  if isinstance(entry, str | Path) and Path(entry).suffix != ".npz":
    with reading(f"image {str(entry)!r} cannot be read"):
      content = Path(entry).read_bytes()
    return Encoded(content, channels, str(entry), True, value_range).decode()
  return None


def check_image(image: np.ndarray, channels: int, number: int) -> np.ndarray:
  """Converts an array to an image, uint8 with an axis of channels.

  Args:
    image: The image, uint8 or float in 0..1; (height, width, C), or (height, width) for C = 1.
    channels: The number of channels C.
    number: The number of the image among the inputs, for errors.

  Raises:
    ValueError: The array is no image.
  """
  array = image[..., None] if image.ndim == 2 else image
  is_float = jnp.issubdtype(array.dtype, jnp.floating)
  fits = array.ndim == 3 and array.shape[-1] == channels and array.size
  if not fits or not (is_float or array.dtype == np.uint8):
    raise ValueError(
      f"image {number} must be uint8, or float in 0..1, (height, width, {channels}) with at least"
      f" one pixel, not {array.dtype} {image.shape}."
    )
  if not is_float:
    return array
  if not ((array >= 0) & (array <= 1)).all():
    raise ValueError(
      f"image {number} is float in {array.min()}..{array.max()}, not in 0..1; scale it to 0..1, or"
      " convert it to uint8 in 0..255."
    )
  return np.round(array.astype(np.float32) * 255).astype(np.uint8)
