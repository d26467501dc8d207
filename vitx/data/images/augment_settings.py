"""Checks of `config.augment` against the images, before anything is compiled."""

from collections.abc import Mapping
from typing import Annotated, Any

from vitx.config.checks import NonNegative, Range, Share, check_value
from vitx.config.errors import ConfigError
from vitx.config.fields import AugmentSettings
from vitx.config.registry import check_options
from vitx.config.settings import read_fields

# The entries of the fields that () turns off.
_ENTRIES = {
  "random_resized_crop": tuple[Share, Share],
  "color_jitter": tuple[NonNegative, NonNegative, NonNegative, Annotated[float, Range("[0, 0.5]")]],
  "randaugment": tuple[Annotated[int, Range("[1, 100]")], Annotated[float, Range("[0, 10]")]],
}


def read_augment(augment: Mapping[str, Any], image_size: int, channels: int) -> AugmentSettings:
  """Reads and checks `config.augment` for images of the given size and channels."""
  check_options(AugmentSettings, augment, "augment")
  settings = read_fields(AugmentSettings, augment, "augment")
  for name, kind in _ENTRIES.items():
    if value := getattr(settings, name):
      check_value(value, f"augment.{name}", kind)
  for problem, is_present in _find_problems(settings, image_size, channels).items():
    if is_present:
      raise ConfigError(f"augment.{problem}.")
  return settings


def _find_problems(settings: AugmentSettings, image_size: int, channels: int) -> dict[str, bool]:
  """Returns every contradiction that settings may have, and whether these settings have it."""
  padding, crop = settings.pad_crop, settings.random_resized_crop
  policy, jitter, is_auto = settings.randaugment, settings.color_jitter, settings.autoaugment
  is_sampled = policy and settings.randaugment_operations != "paper"
  return {
    f"pad_crop={padding} must be smaller than the image size {image_size}": padding >= image_size,
    f"random_resized_crop={crop} must have the smallest share first": [*crop] != sorted(crop),
    "pad_crop and random_resized_crop exclude each other": bool(padding and crop),
    "hflip and alternate_flips exclude each other": bool(
      settings.hflip and settings.alternate_flips
    ),
    "autoaugment and randaugment exclude each other": bool(is_auto and policy),
    "interpolation='nearest' excludes randaugment_operations='increasing', which samples between"
    " pixels": bool(is_sampled and settings.interpolation == "nearest"),
    "color_jitter needs 3 channels for saturation and hue": any(jitter[2:]) and channels != 3,
    "color_jitter, randaugment and autoaugment need images of 1 or 3 channels": bool(
      (any(jitter) or policy or is_auto) and channels not in (1, 3)
    ),
  }
