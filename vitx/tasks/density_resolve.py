"""The fields of a density model's config that follow from the data."""

import math
from typing import Any

from ml_collections import ConfigDict

from vitx.config.errors import ConfigError
from vitx.config.registry import lookup, options
from vitx.data.dataset import DatasetInfo, check_arrays
from vitx.data.images.settings import find_channels, find_size
from vitx.models import MODELS

BYTES = 256


def resolve(config: ConfigDict, info: DatasetInfo) -> None:
  """Sets the vocabulary and the grid of a density model in place.

  Args:
    config: The unlocked config; every field that it sets stays unchanged.
    info: The description of the data.

  Raises:
    ConfigError: If the model predicts no tokens, the data are neither images of one size nor
      sequences of tokens, images have a window, sequences have none, or a grid or stride does not
      fit.
  """
  model, task = config.model, config.task
  _check_model(model)
  if "image" in info.spec:
    vocabulary, grid = _resolve_images(config, info)
  elif "tokens" in info.spec and info.vocabulary:
    vocabulary, grid = _resolve_sequences(config, info)
  else:
    raise ConfigError(
      f"task.name='density' needs images or sequences of tokens; data.source={info.name!r} has"
      f" {', '.join(info.spec)}"
    )
  _agree(model, "vocabulary", vocabulary, info.name)
  length = math.prod(grid)
  given = model.get("grid")
  if given is not None and math.prod(given) != length:
    raise ConfigError(
      f"model.grid={tuple(given)} has {math.prod(given)} places, but the sequences of"
      f" {info.name!r} have {length} tokens (task.window={task.get('window')}); make them agree"
    )
  model.grid = grid if given is None else tuple(given)
  mixer = model.get("token_mixer")
  stride = mixer.get("stride") if hasattr(mixer, "get") else None
  if isinstance(stride, int) and stride > 0 and length % stride:
    raise ConfigError(
      f"model.token_mixer.stride={stride} does not divide the {length} tokens of a sequence;"
      " choose a divisor"
    )


def _check_model(model: ConfigDict) -> None:
  """Raises ConfigError for a network that is not made to predict tokens."""
  fields = options(lookup(MODELS, model.name, "model.name"))
  for field in ("vocabulary", "grid"):
    if field not in fields:
      raise ConfigError(
        f"task.name='density' needs a model that predicts tokens, which model.name={model.name!r}"
        f" does not (no field {field!r}); use 'sparse_transformer'"
      )


def _resolve_images(config: ConfigDict, info: DatasetInfo) -> tuple[int, tuple[int, ...]]:
  size, channels = find_size(info), find_channels(info)
  check_arrays(info, {"image": ("uint8", 3)}, "density")
  if size is None:
    raise ConfigError(
      f"task.name='density' needs images of one size; those of data.source={info.name!r} vary"
    )
  if config.task.get("window") is not None:
    raise ConfigError(
      f"task.window={config.task.window}: the images of data.source={info.name!r} are read whole;"
      " leave it out"
    )
  config.data.channels = channels
  return config.task.get("levels", BYTES), (*size, channels)


def _resolve_sequences(config: ConfigDict, info: DatasetInfo) -> tuple[int, tuple[int, ...]]:
  window = config.task.get("window")
  check_arrays(info, {"tokens": ("uint8", 1)}, "density")
  if window is None:
    raise ConfigError(
      f"task.window is not set, and data.source={info.name!r} holds long sequences; set it, such as"
      " task.window=256"
    )
  if not isinstance(window, int) or isinstance(window, bool) or window < 1:
    raise ConfigError(f"task.window={window!r} must be a positive integer")
  assert info.vocabulary is not None
  return info.vocabulary, (window,)


def _agree(model: ConfigDict, field: str, value: Any, name: str) -> None:
  given = model.get(field)
  if given not in (None, value):
    raise ConfigError(
      f"model.{field}={given}, but the source {name!r} has {value}; leave it out, it follows the"
      " source"
    )
  model[field] = value
