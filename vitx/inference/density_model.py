"""Functions of a loaded density model that `sample`, `compress` and `decompress` share."""

import io
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from vitx.checkpoints.load import Loaded
from vitx.config.errors import ConfigError
from vitx.data.images.decode import FORMATS, Encoded
from vitx.data.images.settings import FILE_MODES
from vitx.files import read_bytes
from vitx.tasks.density import Density
from vitx.tasks.density_images import to_tokens

Kind = Literal["image", "text", "audio"]


def density_task(loaded: Loaded) -> Density:
  """Returns the task of a loaded model, which must be a density model.

  Raises:
    ConfigError: The model has another task.
  """
  if not isinstance(loaded.task, Density):
    name = type(loaded.task).__name__.lower()
    raise ConfigError(
      f"workdir={loaded.workdir!r} has the task {name!r}, without probabilities of tokens;"
      " use the workdir of a density model (task.name='density')."
    )
  return loaded.task


def kind_of(loaded: Loaded) -> Kind:
  """Returns the kind of data that a density model's tokens encode: "image", "text" or "audio"."""
  if density_task(loaded).window is None:
    return "image"
  return "audio" if str(loaded.config.data.source).startswith("audio:") else "text"


def grid_of(loaded: Loaded) -> tuple[int, ...]:
  """Returns the grid of the N tokens in a window, which is (height, width, channels) for images."""
  return tuple(loaded.model.grid)  # type: ignore[attr-defined]


def check_tokens(tokens: np.ndarray, loaded: Loaded, where: str) -> np.ndarray:
  """Checks that tokens are in the model's vocabulary and returns them as int32.

  Raises:
    ConfigError: A token is outside the vocabulary; the message names the first one and its place.
  """
  V = loaded.model.vocabulary  # type: ignore[attr-defined]
  wrong = np.flatnonzero((tokens < 0) | (tokens >= V))
  if wrong.size:
    raise ConfigError(
      f"{where} has the byte {int(tokens[wrong[0]])} at position {int(wrong[0])},"
      f" but the model knows only 0 to {V - 1}; remove or replace such bytes."
    )
  return tokens.astype(np.int32)


def read_image(path: str | Path, loaded: Loaded) -> np.ndarray:
  """Returns the stored pixels of an image file, uint8 (height, width, channels).

  Raises:
    ConfigError: The file is not an image with the model's size and channels, or has more than
      these pixels: more than 8 bits per value, a transparent color or further frames. Or no image
      file has so many channels.
    OSError: The file cannot be read.
  """
  height, width, channels = grid_of(loaded)
  if channels not in FILE_MODES:
    raise ConfigError(
      f"{path} cannot be an image of this model, since no image file has {channels} channels; give"
      " vitx compress an array, such as images.npy, and vitx sample no prompt."
    )
  content = read_bytes(path)
  image = Encoded(content, channels, str(path)).decode()
  with Image.open(io.BytesIO(content), formats=FORMATS) as file:
    mode, frames = file.mode, getattr(file, "n_frames", 1)
    mode += " with transparency" * (mode != "RGBA" and file.has_transparency_data)
    mode += " of 16 bits" * _has_16_bits(file)
  if mode != FILE_MODES[channels] or image.shape != (height, width, channels):
    wanted = "gray" if channels == 1 else FILE_MODES[channels]
    raise ConfigError(
      f"{path} has {image.shape[0]} x {image.shape[1]} pixels of mode {mode}; give the model"
      f" {height} x {width} pixels of 8-bit {wanted}"
    )
  if frames > 1:
    raise ConfigError(f"{path} has {frames} images; give the model a file of one image.")
  return image


def _has_16_bits(file: Image.Image) -> bool:
  """Returns whether a file, open but not decoded, has 16 bits for each value of a color.

  Pillow has no mode for such colors: it decodes them to 8 bits and drops the rest. (The 16 bits of
  "BGR;16" are those of a whole pixel.)
  """
  tiles = [(each[0], each[3]) for each in getattr(file, "tile", ())]  # decoders, their arguments
  return any(
    args[-1] > 255 if name == "ppm" else ";16" in str(args) and "BGR" not in str(args)
    for name, args in tiles
  )


def image_tokens(images: np.ndarray, loaded: Loaded) -> np.ndarray:
  """Converts images (n, height, width, channels) to tokens, int32 (n, N).

  Raises:
    ConfigError: A value is not one of the model's levels.
  """
  tokens = to_tokens(images, density_task(loaded).levels)
  return tokens.reshape(len(images), -1).astype(np.int32)
