"""Images as sequences of gray levels."""

import dataclasses
from typing import ClassVar

import numpy as np

from vitx.config.errors import ConfigError
from vitx.data.dataset import Example


@dataclasses.dataclass(frozen=True)
class Pixels:
  """A transform of an image to tokens, in the order of rows, columns and channels.

  Attributes:
    levels: The number of gray levels V. A pixel value p in 0 ... 255 becomes the token
      p (V - 1) / 255, which must be an integer up to the rounding of p.
    grid: The shape (height, width, channels) of the images.
  """

  levels: int
  grid: tuple[int, ...]

  draws: ClassVar[bool] = False

  def __call__(self, example: Example, bits: np.random.Philox | None = None) -> Example:
    """Returns an example with the arrays `tokens`, uint8 (N,), and `first`, 0 as int32 ()."""
    tokens = to_tokens(example["image"], self.levels).reshape(-1)
    return {"tokens": tokens, "first": np.asarray(0, np.int32)}


def to_tokens(image: np.ndarray, levels: int) -> np.ndarray:
  """Converts the values 0 ... 255 of an image to gray levels 0 ... V - 1, uint8 of equal shape.

  Raises:
    ConfigError: A value is between two levels.
  """
  tokens = np.rint(image * ((levels - 1) / 255)).astype(np.uint8)
  if not np.array_equal(to_values(tokens, levels), image):
    wrong = np.unique(image[to_values(tokens, levels) != image])
    raise ConfigError(
      f"task.levels={levels} does not fit an image with values between the levels, such as"
      f" {wrong[:5].tolist()}; use task.levels=256."
    )
  return tokens


def to_values(tokens: np.ndarray, levels: int) -> np.ndarray:
  """Converts gray levels 0 ... V - 1 to values 0 ... 255, uint8 in the shape of `tokens`."""
  return np.rint(tokens * (255 / (levels - 1))).astype(np.uint8)
