"""The fields of `config.augment` and `config.evaluation`, checked before anything is compiled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from vitx.config.checks import (
  NonNegative,
  NonNegativeInt,
  Probability,
  Range,
  Share,
  check_fields,
  check_integer,
  check_number,
)
from vitx.config.errors import ConfigError
from vitx.config.registry import check_options
from vitx.data.images.settings import Interpolation


@dataclass(frozen=True)
class AugmentSettings:
  """What is done to a training image; each field is off by default.

  Attributes:
    pad_crop: pixels of zero padding before a random crop back to the image size.
    random_resized_crop: (smallest, largest) share of the area; () is off.
    hflip: probability of a flip from left to right.
    vflip: probability of a flip upside down.
    rotate: largest angle in degrees, either way.
    color_jitter: (brightness, contrast, saturation, hue); () is off.
    randaugment: (number of operations, magnitude 0..10); () is off.
    randaugment_probability: with which each of its operations is applied.
    randaugment_std: standard deviation of the magnitude, drawn for each operation.
    randaugment_operations: the paper's 14, or timm's 15 whose effect increases with the magnitude.
    autoaugment: whether the CIFAR policy is applied.
    random_erasing: probability of erasing a box.
    random_erasing_fill: zero (the mean), or noise, normal for each pixel, in a box of timm's.
    mixup: alpha; 0 is off.
    cutmix: alpha; 0 is off.
    mixing: whether each pair draws its share (and which of the two), or the batch one for all.
    interpolation: of every resampling; random draws bilinear or bicubic each time.
  """

  pad_crop: NonNegativeInt = 0
  random_resized_crop: tuple[Share, ...] = ()
  hflip: Probability = 0.0
  vflip: Probability = 0.0
  rotate: Annotated[float, Range("[0, 180]")] = 0.0
  color_jitter: tuple[NonNegative, ...] = ()
  randaugment: tuple[NonNegative, ...] = ()
  randaugment_probability: Probability = 1.0
  randaugment_std: NonNegative = 0.0
  randaugment_operations: Literal["paper", "increasing"] = "paper"
  autoaugment: bool = False
  random_erasing: Probability = 0.0
  random_erasing_fill: Literal["zero", "noise"] = "zero"
  mixup: NonNegative = 0.0
  cutmix: NonNegative = 0.0
  mixing: Literal["pair", "batch"] = "pair"
  interpolation: Literal["bilinear", "nearest", "bicubic", "random"] = "bilinear"


@dataclass(frozen=True)
class EvalSettings:
  """How an image is prepared for evaluation.

  Attributes:
    crop_ratio: image size / side to which the image is resized before its center is cut out.
    interpolation: of the resizing.
  """

  crop_ratio: Share = 1.0
  interpolation: Interpolation = "bilinear"


def read_augment(augment: Mapping[str, Any], image_size: int, channels: int) -> AugmentSettings:
  """Checks `config.augment` for images of the given size and channels.

  Raises:
    ConfigError: an unknown field, a value out of its range, or two fields that exclude each other.
  """
  given = dict(augment)
  check_options(AugmentSettings, given, "augment")
  check_fields(AugmentSettings, given, "augment")
  tuples = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
  settings = AugmentSettings(**{**given, **tuples})
  _check_crops(settings, image_size)
  _check_jitter(settings.color_jitter, channels)
  _check_policies(settings, channels)
  return settings


def _check_length(field: str, value: tuple, meaning: str) -> None:
  count = meaning.count(",") + 1
  if len(value) not in (0, count):
    raise ConfigError(f"{field}={value!r} must have {count} values ({meaning}), or none: off.")


def _check_crops(settings: AugmentSettings, image_size: int) -> None:
  if settings.pad_crop >= image_size:
    raise ConfigError(
      f"augment.pad_crop={settings.pad_crop} must be smaller than the image size {image_size}."
    )
  area = settings.random_resized_crop
  _check_length("augment.random_resized_crop", area, "smallest, largest share of the area")
  if area and area[0] > area[1]:
    raise ConfigError(
      f"augment.random_resized_crop={area!r} must be (smallest, largest) share of the area."
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
    if name == "hue":
      check_number(amount, "augment.color_jitter: hue", "[0, 0.5]")
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
    check_integer(policy[0], "augment.randaugment: number of operations", "[1, 100]")
    check_number(policy[1], "augment.randaugment: magnitude", "[0, 10]")
  if policy and settings.randaugment_operations != "paper" and settings.interpolation == "nearest":
    raise ConfigError(
      f"augment.randaugment_operations={settings.randaugment_operations!r} looks between"
      " pixels, but augment.interpolation='nearest': set it to bilinear, bicubic or random."
    )
  if policy and settings.autoaugment:
    raise ConfigError(
      f"augment.autoaugment=True and augment.randaugment={policy!r} are both on: choose one."
    )
  if (policy or settings.autoaugment) and channels not in (1, 3):
    name = "randaugment" if policy else "autoaugment"
    raise ConfigError(f"augment.{name} needs images of 1 or 3 channels, these have {channels}.")
