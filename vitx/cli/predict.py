"""Predicts classes of images with a trained model."""

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vitx.checkpoints.load import Loaded, load
from vitx.data.images.augment import make_eval_preprocess
from vitx.data.images.decode import decode_image, stored
from vitx.errors import ConfigError

BATCH = 64
# Compiled once per model, not once per call.
_FUNCTIONS: weakref.WeakKeyDictionary[Loaded, Callable] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Prediction:
  """Class probabilities of images.

  Attributes:
    probabilities: float32 (B, K).
    class_names: of the K classes.
  """

  probabilities: np.ndarray
  class_names: tuple[str, ...]

  @property
  def classes(self) -> list[str]:
    """The name of the most probable class, per image."""
    return [self.class_names[i] for i in self.probabilities.argmax(axis=1)]


def predict(model: Loaded | str | Path, images: Sequence[Any] | np.ndarray) -> Prediction:
  """Predicts the classes of images of any size, prepared as in the run's evaluation.

  Args:
    model: of `vitx.load`, or a workdir (its best checkpoint).
    images: a list of paths of image files (any mode) and of uint8 arrays (height, width, C), for
      C = 1 also (height, width); or one array (B, height, width, C).

  Returns:
    Probabilities (B, K) and class names.

  Raises:
    ConfigError: no workdir, or an unreadable image (names its path).
    ValueError: no list of images, or an array that is no uint8 image of the model's C channels.
  """
  loaded = model if isinstance(model, Loaded) else load(model)
  data = loaded.config.data
  images = _as_list(images, data.channels)
  if loaded not in _FUNCTIONS:
    _FUNCTIONS[loaded] = _make_function(loaded)
  function = _FUNCTIONS[loaded]
  variables = jax.device_put(loaded.variables)
  fit = "center" if data.fit == "random" else data.fit
  # A few sizes of batches, each compiled once, with blank images at the end.
  rows = min(BATCH, 1 << max(len(images) - 1, 0).bit_length())
  batch = np.zeros((rows, data.stored_size, data.stored_size, data.channels), np.uint8)
  results = [np.zeros((0, loaded.config.model.num_classes), np.float32)]
  for start in range(0, len(images), rows):
    chunk = images[start : start + rows]
    for i, image in enumerate(chunk):
      batch[i] = stored(_as_array(image, data.channels, start + i), data.stored_size, fit)
    results.append(np.asarray(function(variables, batch))[: len(chunk)])
  return Prediction(np.concatenate(results), loaded.class_names)


def _make_function(loaded: Loaded) -> Callable:
  """`(variables, images uint8 (B, S, S, C)) -> probabilities (B, K)`."""
  data, model = loaded.config.data, loaded.model
  preprocess = make_eval_preprocess(
    loaded.config.evaluation, image_size=data.image_size, mean=data.mean, std=data.std
  )

  @jax.jit
  def probabilities(variables: Any, batch: jax.Array) -> jax.Array:
    logits: Any = model.apply(variables, preprocess(batch), train=False)
    return jax.nn.softmax(logits)

  return probabilities


def _as_list(images: Any, channels: int) -> Sequence[Any] | np.ndarray:
  array = isinstance(images, np.ndarray | jax.Array)
  if isinstance(images, str | Path) or (array and images.ndim != 4):
    what = f"an array of shape {images.shape}" if array else repr(str(images))
    raise ValueError(
      f"images must be a list of images or an array (B, height, width, {channels}), not {what};"
      " one image is a list of one: [image]"
    )
  return np.asarray(images) if array else list(images)


def _as_array(image: Any, channels: int, number: int) -> np.ndarray:
  """uint8 (height, width, C)."""
  if isinstance(image, str | Path):
    return decode_image(_read(image), channels, str(image), upright=True)
  if not isinstance(image, np.ndarray | jax.Array):
    raise ValueError(
      f"image {number} must be a path or a uint8 array (height, width, {channels}), not"
      f" {type(image).__name__}"
    )
  array = np.asarray(image)
  array = array[..., None] if array.ndim == 2 else array
  if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != channels:
    raise ValueError(
      f"image {number} must be uint8 (height, width, {channels}), not {array.dtype} {image.shape}"
    )
  return array


def _read(path: str | Path) -> bytes:
  try:
    return Path(path).read_bytes()
  except OSError as error:
    raise ConfigError(f"image {str(path)!r} cannot be read: {error}") from error
