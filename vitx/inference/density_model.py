"""Functions of a loaded density model that `sample`, `compress` and `decompress` share."""

from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from vitx.checkpoints.load import Loaded
from vitx.config.errors import ConfigError
from vitx.data.images.decode import FORMATS, Encoded
from vitx.data.images.settings import FILE_MODES
from vitx.tasks.density import Density
from vitx.tasks.density_images import to_tokens

Kind = Literal["image", "text", "audio"]


def density_task(loaded: Loaded) -> Density:
  """Returns the task of a loaded model; raises ConfigError if it is no density model."""
  if not isinstance(loaded.task, Density):
    raise ConfigError(f"workdir={loaded.workdir!r} is no density model (task.name='density').")
  return loaded.task


def kind_of(loaded: Loaded) -> Kind:
  """Returns the kind of data that a density model's tokens encode: "image", "text" or "audio"."""
  if density_task(loaded).window is None:
    return "image"
  return "audio" if loaded.settings.data.source.startswith("audio:") else "text"


def grid_of(loaded: Loaded) -> tuple[int, ...]:
  """Returns the grid of the N tokens in a window, which is (height, width, channels) for images."""
  return tuple(loaded.model.grid)  # type: ignore[attr-defined]


def check_tokens(tokens: np.ndarray, loaded: Loaded, where: str) -> np.ndarray:
  """Checks that tokens are in the model's vocabulary and returns them as int32."""
  V = loaded.model.vocabulary  # type: ignore[attr-defined]
  wrong = np.flatnonzero((tokens < 0) | (tokens >= V))
  if wrong.size:
    token = f"the byte {int(tokens[wrong[0]])} at position {int(wrong[0])}"
    raise ConfigError(f"{where} has {token}, but the model knows only 0 to {V - 1}.")
  return tokens.astype(np.int32)


def read_image(path: str | Path, loaded: Loaded) -> np.ndarray:
  """Returns the stored pixels of an image file, uint8 (height, width, channels).

  The file must be one image of the model's size and channels and have nothing but these pixels: no
  more than 8 bits per value, no transparent color, no further frames.
  """
  height, width, channels = grid_of(loaded)
  mode = FILE_MODES.get(channels)
  with Image.open(path, formats=FORMATS) as file:
    has_more = getattr(file, "n_frames", 1) > 1 or _has_16_bits(file)
    has_more |= mode != "RGBA" and file.has_transparency_data
    if has_more or file.mode != mode or file.size != (width, height):
      raise ConfigError(
        f"{path} must be one image of {height} x {width} pixels, of 8 bits in the mode {mode}"
        " without a transparent color."
      )
  return Encoded(Path(path).read_bytes(), channels, str(path)).decode()


def _has_16_bits(file: Image.Image) -> bool:
  """Returns whether a file, open but not decoded, has 16 bits for each value of a color.

  Pillow has no mode for such colors: it decodes them to 8 bits and drops the rest. (The 16 bits of
  "BGR;16" are those of a whole pixel.)
  """
  tiles = [(tile[0], tile[3]) for tile in getattr(file, "tile", ())]  # decoders, their arguments
  return any(
    args[-1] > 255 if name == "ppm" else ";16" in str(args) and "BGR" not in str(args)
    for name, args in tiles
  )


def image_tokens(images: np.ndarray, loaded: Loaded) -> np.ndarray:
  """Converts images (n, height, width, channels) to tokens, int32 (n, N)."""
  tokens = to_tokens(images, density_task(loaded).levels)
  return tokens.reshape(len(images), -1).astype(np.int32)
