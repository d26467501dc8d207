"""Sets the fields of a density model's config that follow from the data."""

import dataclasses
import math

from ml_collections import ConfigDict

from vitx.config.errors import ConfigError
from vitx.config.fields import AugmentSettings, read_fields
from vitx.config.registry import lookup, options
from vitx.data.dataset import DatasetInfo, check_arrays
from vitx.data.images.settings import find_channels, find_size, sides
from vitx.models import MODELS
from vitx.tasks.base import follow_source

BYTES = 256


def resolve(config: ConfigDict, info: DatasetInfo) -> None:
  """Sets the vocabulary and the grid of a density model in place.

  Args:
    config: The unlocked config. It is changed in place, except for the fields that it already sets.
    info: The description of the data.

  Raises:
    ConfigError: If the model predicts no tokens, if the data are neither images of one size nor
      sequences of tokens, if a window is set for images or not set for sequences, if images are to
      be resized or augmented, or if the grid or the mixer's stride does not fit the data.
  """
  model = config.model
  if not {"vocabulary", "grid"} <= set(options(lookup(MODELS, model.name, "model.name"))):
    raise ConfigError(
      f"task.name='density' needs a model that predicts tokens, which model.name={model.name!r}"
      " does not (it lacks the field 'vocabulary' or 'grid'); use model.name='sparse_transformer'."
    )
  if "image" in info.spec:
    vocabulary, grid = _resolve_images(config, info)
  elif "tokens" in info.spec and info.vocabulary:
    vocabulary, grid = _resolve_sequences(config, info)
  else:
    raise ConfigError(
      "task.name='density' needs a source with the array image or tokens, but"
      f" data.source={info.name!r} has {', '.join(info.spec)}; choose another source."
    )
  follow_source(model, "vocabulary", vocabulary, info.name)
  length = math.prod(grid)
  given = model.get("grid")
  if given is not None and math.prod(given) != length:
    raise ConfigError(
      f"model.grid={tuple(given)} has {math.prod(given)} places, but each example of"
      f" {info.name!r} has {length} tokens; leave model.grid out, or give it {length} places."
    )
  model.grid = grid if given is None else tuple(given)
  mixer = model.get("token_mixer")
  stride = mixer.get("stride") if hasattr(mixer, "get") else None
  if isinstance(stride, int) and stride > 0 and length % stride:
    raise ConfigError(
      f"model.token_mixer.stride={stride} does not divide the {length} tokens of a sequence;"
      " choose a divisor."
    )


def _resolve_images(config: ConfigDict, info: DatasetInfo) -> tuple[int, tuple[int, ...]]:
  size, channels = find_size(info), find_channels(info)
  check_arrays(info, {"image": ("uint8", 3)}, "density")
  if size is None:
    raise ConfigError(
      f"task.name='density' needs images of one size, unlike those of {info.name!r};"
      " choose another data.source."
    )
  if config.task.get("window") is not None:
    raise ConfigError(
      f"task.window={config.task.window} is for sequences, but the images of"
      f" data.source={info.name!r} are read whole; leave task.window out."
    )
  _check_unchanged(config, size)
  config.data.channels = channels
  return config.task.get("levels", BYTES), (*size, channels)


def _check_unchanged(config: ConfigDict, size: tuple[int, int]) -> None:
  """Checks that no field resizes or augments the images, whose own values are modeled.

  Raises:
    ConfigError: `data.image_size` is another size, or an operation of `augment` is on.
  """
  wanted = config.data.get("image_size")
  if wanted is not None and sides(wanted) != size:
    raise ConfigError(
      f"data.image_size={wanted!r}: task.name='density' does not resize images, and those of"
      f" data.source={config.data.source!r} are {size[0]} x {size[1]}; leave data.image_size out."
    )
  augment = read_fields(AugmentSettings, config.get("augment", {}), "augment")
  for each in dataclasses.fields(augment):
    value = getattr(augment, each.name)
    if value and not each.default:  # the operations are off by default; the rest says how they act
      raise ConfigError(
        f"augment.{each.name}={value!r}: task.name='density' does not augment images; leave"
        f" augment.{each.name} out, or set it to {each.default!r}."
      )


def _resolve_sequences(config: ConfigDict, info: DatasetInfo) -> tuple[int, tuple[int, ...]]:
  window = config.task.get("window")
  check_arrays(info, {"tokens": ("uint8", 1)}, "density")
  if window is None:
    raise ConfigError(
      f"task.window is not set, and data.source={info.name!r} holds long sequences; set it, such as"
      " task.window=256."
    )
  assert info.vocabulary is not None
  return info.vocabulary, (window,)
