"""The fields of `config.augment`, checked before anything is compiled."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from vitx.errors import ConfigError, listing, nearest


@dataclass(frozen=True)
class AugmentSettings:
  """What is done to a training image; each field is off by default.

  Fields:
    pad_crop: pixels of zero padding before a random crop back to the image size.
    random_resized_crop: (smallest, largest) share of the area; () is off.
    hflip, vflip: probabilities.
    rotate: largest angle in degrees, either way.
    color_jitter: (brightness, contrast, saturation, hue); () is off.
    randaugment: (number of operations, magnitude 0..10); () is off.
    autoaugment: the CIFAR policy.
    random_erasing: probability.
    mixup, cutmix: alpha; 0 is off.
    interpolation: bilinear or nearest, of every resampling.
  """

  pad_crop: int = 0
  random_resized_crop: tuple[float, ...] = ()
  hflip: float = 0.0
  vflip: float = 0.0
  rotate: float = 0.0
  color_jitter: tuple[float, ...] = ()
  randaugment: tuple[float, ...] = ()
  autoaugment: bool = False
  random_erasing: float = 0.0
  mixup: float = 0.0
  cutmix: float = 0.0
  interpolation: str = "bilinear"


def read_settings(augment: Mapping[str, Any], image_size: int, channels: int) -> AugmentSettings:
  """Checks `config.augment` for images of the given size and channels.

  Raises:
    ConfigError: an unknown field, a value out of its range, or two fields that exclude each other.
  """
  names = [field.name for field in fields(AugmentSettings)]
  given = dict(augment)
  for name in given:
    if name not in names:
      raise ConfigError(
        f"augment.{name}={given[name]!r} is unknown.{nearest(name, names)} Valid: {listing(names)}."
      )
  for name in ("random_resized_crop", "color_jitter", "randaugment"):
    given[name] = _numbers(f"augment.{name}", given.get(name, ()))
  settings = AugmentSettings(**given)
  for name in ("hflip", "vflip", "random_erasing"):
    check_range(f"augment.{name}", getattr(settings, name), 0, 1)
  for name in ("mixup", "cutmix"):
    check_range(f"augment.{name}", getattr(settings, name), 0, math.inf)
  check_range("augment.rotate", settings.rotate, 0, 180)
  check_interpolation("augment.interpolation", settings.interpolation, ("bilinear", "nearest"))
  _check_crops(settings, image_size)
  _check_jitter(settings.color_jitter, channels)
  _check_policies(settings, channels)
  return settings


def check_range(field: str, value: Any, low: float, high: float) -> None:
  """Raises ConfigError unless `value` is a finite number in low..high."""
  if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
    raise ConfigError(f"{field}={value!r} must be a number.")
  if not low <= value <= high or math.isinf(value):
    wanted = f"lie in {low:g}..{high:g}" if high < math.inf else f"be finite and at least {low:g}"
    raise ConfigError(f"{field}={value!r} must {wanted}.")


def check_interpolation(field: str, value: Any, valid: Sequence[str]) -> None:
  """Raises ConfigError unless `value` is one of `valid`."""
  if value not in valid:
    raise ConfigError(
      f"{field}={value!r} is unknown.{nearest(value, valid)} Valid: {listing(valid)}."
    )


def check_whole(field: str, value: Any, low: int, high: float = math.inf) -> None:
  """Raises ConfigError unless `value` is a whole number in low..high."""
  check_range(field, value, low, high)
  if value != int(value):
    raise ConfigError(f"{field}={value!r} must be a whole number.")


def _numbers(field: str, value: Any) -> tuple[float, ...]:
  if isinstance(value, str) or not isinstance(value, Sequence):
    raise ConfigError(f"{field}={value!r} must be a tuple of numbers; () is off.")
  return tuple(value)


def _check_length(field: str, value: tuple, meaning: str) -> None:
  count = meaning.count(",") + 1
  if len(value) not in (0, count):
    raise ConfigError(f"{field}={value!r} must have {count} values ({meaning}), or none: off.")


def _check_crops(settings: AugmentSettings, image_size: int) -> None:
  check_whole("augment.pad_crop", settings.pad_crop, 0)
  if settings.pad_crop >= image_size:
    raise ConfigError(
      f"augment.pad_crop={settings.pad_crop} must be smaller than the image size {image_size}."
    )
  area = settings.random_resized_crop
  _check_length("augment.random_resized_crop", area, "smallest, largest share of the area")
  for i, share in enumerate(area):
    check_range(f"augment.random_resized_crop[{i}]", share, 0, 1)
  if area and not 0 < area[0] <= area[1]:
    raise ConfigError(
      f"augment.random_resized_crop={area!r} must be (smallest, largest) share of the area, both"
      " above 0."
    )
  if settings.pad_crop and area:
    raise ConfigError(
      f"augment.pad_crop={settings.pad_crop} and augment.random_resized_crop={area!r} are both on:"
      " set one of them to 0 or ()."
    )


def _check_jitter(amounts: tuple[float, ...], channels: int) -> None:
  names = ("brightness", "contrast", "saturation", "hue")
  _check_length("augment.color_jitter", amounts, ", ".join(names))
  for name, amount in zip(names, amounts, strict=False):
    high = 0.5 if name == "hue" else math.inf
    check_range(f"augment.color_jitter: {name}", amount, 0, high)
    valid = (3,) if name in ("saturation", "hue") else (1, 3)
    if amount and channels not in valid:
      raise ConfigError(
        f"augment.color_jitter: {name}={amount!r} needs images of {' or '.join(map(str, valid))}"
        f" channels, these have {channels}: set it to 0."
      )


def _check_policies(settings: AugmentSettings, channels: int) -> None:
  policy = settings.randaugment
  _check_length("augment.randaugment", policy, "number of operations, magnitude")
  if policy:
    check_whole("augment.randaugment: number of operations", policy[0], 1)
    check_range("augment.randaugment: magnitude", policy[1], 0, 10)
  if not isinstance(settings.autoaugment, bool):
    raise ConfigError(f"augment.autoaugment={settings.autoaugment!r} must be True or False.")
  if policy and settings.autoaugment:
    raise ConfigError(
      f"augment.autoaugment=True and augment.randaugment={policy!r} are both on: choose one."
    )
  if (policy or settings.autoaugment) and channels not in (1, 3):
    name = "randaugment" if policy else "autoaugment"
    raise ConfigError(f"augment.{name} needs images of 1 or 3 channels, these have {channels}.")
