"""Resizes labeled images to one size, on the host."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings, HostInterpolation, ResizeMode, Size
from vitx.data.dataset import Example
from vitx.data.images.decode import Encoded, resize, resize_short_side


@dataclass(frozen=True)
class ResizeImages:
  """A transform that resizes the image of an example to uint8 (S, S, C), and keeps its label.

  Attributes:
    decode_size: The side S of the result, or its (height, width).
    resize_mode: One of center, squash and random, see `decode.resize`. In evaluation, `random`
      takes the center by `decode.resize_short_side`.
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
