"""The transform of labeled images on the host: squares of one size."""

from dataclasses import dataclass

import numpy as np

from vitx.checks import check_fields
from vitx.data.dataset import Example
from vitx.data.images.decode import resize
from vitx.data.images.settings import ResizeMode, Side


@dataclass(frozen=True)
class SquareImages:
  """Makes image uint8 (S, S, C) and label int32 () from images of any size.

  Attributes:
    decode_size: side S.
    resize_mode: center | squash | random, see `decode.resize`.
    train: whether `random` draws a crop; else it takes the center.

  Raises:
    ConfigError: an unknown mode or a size out of range.
  """

  decode_size: Side
  resize_mode: ResizeMode = "center"
  train: bool = True

  def __post_init__(self):
    check_fields(type(self), vars(self), "data")

  @property
  def draws(self) -> bool:
    """Returns whether each row of each step has a crop of its own."""
    return self.train and self.resize_mode == "random"

  def __call__(self, example: Example, bits: np.random.Philox | None = None) -> Example:
    mode = self.resize_mode if self.train or self.resize_mode != "random" else "center"
    image = resize(example["image"], self.decode_size, mode, bits)
    return {"image": image, "label": np.asarray(example["label"], np.int32)}
