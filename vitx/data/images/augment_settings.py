"""Checks of `config.augment` against the images, before anything is compiled."""

from collections.abc import Mapping
from typing import Any

from vitx.config.checks import check_integer, check_number
from vitx.config.errors import ConfigError
from vitx.config.fields import AugmentSettings, read_fields
from vitx.config.registry import check_options


def read_augment(augment: Mapping[str, Any], image_size: int, channels: int) -> AugmentSettings:
  """Reads and checks `config.augment` for images of the given size and channels.

  Raises:
    ConfigError: A field is unknown, a value is out of range, or two fields exclude each other.
  """
  check_options(AugmentSettings, augment, "augment")
  settings = read_fields(AugmentSettings, augment, "augment")
  _check_crops(settings, image_size)
  _check_jitter(settings.color_jitter, channels)
  _check_policies(settings, channels)
  return settings


def _check_length(field: str, value: tuple, meaning: str) -> None:
  """Checks that a value is empty or has one entry for each quantity that `meaning` lists.

  For example, "number of operations, magnitude" lists two quantities, separated by a comma.
  """
  count = meaning.count(",") + 1
  if len(value) not in (0, count):
    raise ConfigError(
      f"{field}={value!r} must have {count} values ({meaning}), or be () to turn it off."
    )


def _check_crops(settings: AugmentSettings, image_size: int) -> None:
  if settings.pad_crop >= image_size:
    raise ConfigError(
      f"augment.pad_crop={settings.pad_crop} must be smaller than the image size {image_size}."
    )
  area = settings.random_resized_crop
  _check_length("augment.random_resized_crop", area, "smallest, largest share of the area")
  if area and area[0] > area[1]:
    raise ConfigError(
      f"augment.random_resized_crop={area!r} must be the smallest and the largest share"
      " of the area, in this order."
    )
  if settings.pad_crop and area:
    raise ConfigError(
      f"augment.pad_crop={settings.pad_crop} and augment.random_resized_crop={area!r} are"
      " both on. Set pad_crop to 0 or random_resized_crop to ()."
    )


def _check_jitter(amounts: tuple[float, ...], channels: int) -> None:
  names = ("brightness", "contrast", "saturation", "hue")
  _check_length("augment.color_jitter", amounts, ", ".join(names))
  for name, amount in zip(names, amounts, strict=False):
    if name == "hue":
      check_number(amount, "augment.color_jitter: hue", "[0, 0.5]")
    valid = (3,) if name in ("saturation", "hue") else (1, 3)
    if amount and channels not in valid:
      raise ConfigError(
        f"augment.color_jitter: {name}={amount!r} needs images of {' or '.join(map(str, valid))}"
        f" channels, but these have {channels}. Set {name} to 0."
      )


def _check_policies(settings: AugmentSettings, channels: int) -> None:
  policy = settings.randaugment
  _check_length("augment.randaugment", policy, "number of operations, magnitude")
  if policy:
    check_integer(policy[0], "augment.randaugment: number of operations", "[1, 100]")
    check_number(policy[1], "augment.randaugment: magnitude", "[0, 10]")
  if policy and settings.randaugment_operations != "paper" and settings.interpolation == "nearest":
    raise ConfigError(
      f"augment.randaugment_operations={settings.randaugment_operations!r} samples"
      " between pixels, unlike augment.interpolation='nearest'. Set augment.interpolation"
      " to bilinear, bicubic or random."
    )
  if policy and settings.autoaugment:
    raise ConfigError(
      f"augment.autoaugment=True and augment.randaugment={policy!r} are both on. Set"
      " autoaugment to False or randaugment to ()."
    )
  if (policy or settings.autoaugment) and channels not in (1, 3):
    name, off = ("randaugment", "()") if policy else ("autoaugment", "False")
    raise ConfigError(
      f"augment.{name} needs images of 1 or 3 channels, but these have {channels}. Set it to {off}."
    )
