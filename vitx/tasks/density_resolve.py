"""Sets the fields of a density model's config that follow from the data."""

import dataclasses
import math

from ml_collections import ConfigDict

from vitx.config.errors import ConfigError
from vitx.config.fields import AugmentSettings
from vitx.data.dataset import DatasetInfo, check_arrays
from vitx.data.images.settings import find_channels, find_size, sides
from vitx.tasks.base import follow_source

BYTES = 256


def resolve(config: ConfigDict, info: DatasetInfo) -> None:
  """Sets the vocabulary and the grid of a density model in place.

  Args:
    config: The unlocked config. It is changed in place, except for the fields that it already sets.
    info: The description of the data.

  Raises:
    ConfigError: A field contradicts the data, or the data are neither images of one size nor
      sequences of tokens.
  """
  model, window = config.model, config.task.get("window")
  if (window is None) != ("image" in info.spec):
    raise ConfigError(
      f"task.window={window}: data.source={info.name!r} has {', '.join(info.spec)}; set task.window"
      " for sequences, such as task.window=256, and leave it out for images, which are read whole."
    )
  spec = {"image": ("uint8", 3)} if window is None else {"tokens": ("uint8", 1)}
  check_arrays(info, spec, "density")
  vocabulary, grid = (
    _resolve_images(config, info) if window is None else (info.vocabulary, (window,))
  )
  follow_source(model, "vocabulary", vocabulary, info.name)
  model.grid = grid if model.get("grid") is None else tuple(model.grid)
  if math.prod(model.grid) != math.prod(grid):
    raise ConfigError(
      f"model.grid={model.grid} has {math.prod(model.grid)} places, but each example of"
      f" {info.name!r} has {math.prod(grid)} tokens; leave model.grid out."
    )


def _resolve_images(config: ConfigDict, info: DatasetInfo) -> tuple[int, tuple[int, ...]]:
  """Returns the vocabulary and the grid of images, which no field resizes or augments."""
  size, data = find_size(info), config.data
  if size is None or sides(data.image_size or size) != size:
    raise ConfigError(
      f"data.image_size={data.image_size!r}: task.name='density' needs images of one size,"
      f" which it does not resize, and those of data.source={info.name!r} are"
      f" {info.spec['image'].shape}; leave data.image_size out, or choose another data.source."
    )
  for field in dataclasses.fields(AugmentSettings):
    value = config.augment[field.name]
    if value and not field.default:  # the operations are off by default; the rest says how they act
      raise ConfigError(
        f"augment.{field.name}={value!r}: task.name='density' does not augment images; set it to"
        f" {field.default!r}."
      )
  data.channels = find_channels(info)
  return config.task.get("levels", BYTES), (*size, data.channels)
