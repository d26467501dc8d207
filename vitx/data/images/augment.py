"""Image processing on the device: augmentation in training, resize and crop in evaluation.

`make_train_augment` and `make_eval_preprocess` return a pure function that may be jitted, vmapped
and pmapped. The order in training is: alternating flips, crop (or resize), random flips, rotation,
AutoAugment or RandAugment, color jitter, normalization, random erasing, mixing. Every random draw
is a function of (key, index in the global batch, operation), independent of the devices and of the
other operations.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from vitx.config.errors import ConfigError
from vitx.config.fields import AugmentSettings, EvaluationSettings, Size
from vitx.data.images import autoaugment, color, cropping, image_ops, mixup, randaugment
from vitx.data.images.augment_settings import read_augment
from vitx.data.images.settings import sides

# A function from (key, image (H, W, C)) to an image.
ImageStage = Callable[[jax.Array, jax.Array], jax.Array]
Stages = dict[str, ImageStage]

# The random stream of each operation, in the order of the operations. A new operation must be the
# last, because the position determines the draws of a seed.
STREAMS = ("crop", "hflip", "vflip", "rotate", "policy", "jitter", "erasing", "mixing")
# Numbers to fold into a key. They differ from every example index, every stream number and every
# number that `jax.random.split` folds in (0, 1, ...).
WHOLE_BATCH = 2**31 - 1
WHICH_OF_TWO = 2**31 - 2


def make_train_augment(
  augment: Mapping[str, Any],
  *,
  image_size: Size,
  mean: Sequence[float],
  std: Sequence[float],
  num_classes: int,
  label_smoothing: float,
) -> Callable[..., tuple[jax.Array, jax.Array]]:
  """Builds the augmentation of a training batch from a config.

  Args:
    augment: `config.augment`; see `AugmentSettings`. With everything off, images are only resized
      to `image_size` if necessary and normalized; the key is not used.
    image_size: The side s of the square input of the model, or its (height, width).
    mean: The mean per channel, for pixels in 0..1.
    std: The standard deviation per channel, for pixels in 0..1; above 0.
    num_classes: The number of classes K.
    label_smoothing: The smoothing e; targets are (1 - e) one-hot + e / K.

  Returns:
    A function (key, index, images, labels, parity=None) -> (images, targets):
      key: A threefry key of this step (with other generators, `jax.vmap` changes the bits).
      index: The position of each example in the global batch, int32 (B,).
      images: The images, of any one size, uint8 (B, height, width, C).
      labels: The labels, int32 (B,), or float32 (B, K), see `mixup.smooth_targets`.
      parity: 1 for images to flip if `alternate_flips` is set, otherwise 0, int32 (B,).
    It returns normalized images, float32 (B, s, s, C), and targets, float32 (B, K). Mixup
    and CutMix mix the rows 2p and 2p + 1 of the global batch with each other, so B must be even.
  """
  size = sides(image_size)
  settings = read_augment(augment, min(size), len(mean))
  mixes = bool(settings.mixup or settings.cutmix)
  fixed = "bicubic" if settings.interpolation == "random" else settings.interpolation

  def example(key: Any, image: jax.Array, stages: Stages, mean: Any, factor: Any) -> jax.Array:
    image = image.astype(jnp.float32) / 255.0
    if not settings.random_resized_crop:
      image = image_ops.resize(image, size, fixed)
    for name in STREAMS:
      if name == "erasing":
        image = _normalize(image, mean, factor)
      if name in stages:
        image = stages[name](_stream(key, name), image)
    return image

  def apply(
    key: jax.Array,
    index: jax.Array,
    images: jax.Array,
    labels: jax.Array,
    parity: Any = None,
    *,
    mean: Any,
    factor: Any,
  ) -> tuple[jax.Array, jax.Array]:
    _check_images(images, len(mean))
    stages = _make_stages(settings, size, mean)
    keys = _fold(key, index) if stages else None  # None if nothing is drawn
    if settings.alternate_flips:
      images = jnp.where(parity[:, None, None, None] == 1, jnp.flip(images, 2), images)
    out = jax.vmap(partial(example, stages=stages, mean=mean, factor=factor))(keys, images)
    targets = mixup.smooth_targets(labels, num_classes, label_smoothing)
    if mixes:
      draw = partial(mixup.draw, size=size, mixup=settings.mixup, cutmix=settings.cutmix)
      whole = jax.random.fold_in(key, WHOLE_BATCH)[None]
      pairs = whole if settings.mixing == "batch" else _fold(key, index // 2)
      weights = jax.vmap(lambda pair: draw(_stream(pair, "mixing")))(pairs)
      out, targets = mixup.mix(out, targets, *weights)
    return out, targets

  return Partial(apply, **_channels(mean, std))


def make_eval_preprocess(
  evaluation: EvaluationSettings, *, image_size: Size, mean: Sequence[float], std: Sequence[float]
) -> Callable[[jax.Array], jax.Array]:
  """Builds the preprocessing of an evaluation batch from a config.

  Args:
    evaluation: `config.evaluation`, of which `crop_ratio` and `interpolation` are read. An image is
      resized to image_size / crop_ratio (rounded) before its center is cut out.
    image_size: The side s of the square input of the model, or its (height, width).
    mean: The mean per channel, for pixels in 0..1.
    std: The standard deviation per channel, for pixels in 0..1; above 0.

  Returns:
    A function from uint8 images (B, height, width, C) to normalized float32 images (B, s, s, C).
  """
  height, width = sides(image_size)
  resized = round(height / evaluation.crop_ratio), round(width / evaluation.crop_ratio)
  top, left = (resized[0] - height) // 2, (resized[1] - width) // 2

  def example(image: jax.Array, mean: Any, factor: Any) -> jax.Array:
    image = image_ops.resize(image.astype(jnp.float32) / 255.0, resized, evaluation.interpolation)
    image = image[top : top + height, left : left + width]
    return _normalize(image, mean, factor)

  def apply(images: jax.Array, *, mean: Any, factor: Any) -> jax.Array:
    _check_images(images, len(mean))
    return jax.vmap(partial(example, mean=mean, factor=factor))(images)

  return Partial(apply, **_channels(mean, std))


def _make_stages(settings: AugmentSettings, size: tuple[int, int], mean: Any) -> Stages:
  """Returns the operations by their random stream; "erasing" takes normalized pixels."""
  stages: Stages = {}
  how = settings.interpolation
  if settings.pad_crop:
    stages["crop"] = lambda key, x: cropping.pad_crop(key, x, settings.pad_crop)
  if settings.random_resized_crop:
    low, high = settings.random_resized_crop
    stages["crop"] = _resampling(
      lambda key, x, how: cropping.random_resized_crop(key, x, (low, high), size, how), how
    )
  if settings.hflip:
    stages["hflip"] = lambda key, x: _flip(key, x, settings.hflip, axis=1)
  if settings.vflip:
    stages["vflip"] = lambda key, x: _flip(key, x, settings.vflip, axis=0)
  if settings.rotate:
    stages["rotate"] = _resampling(lambda key, x, how: _rotate(key, x, settings.rotate, how), how)
  if settings.autoaugment:
    stages["policy"] = _resampling(autoaugment.autoaugment, how)
  if settings.randaugment:
    stages["policy"] = _randaugment(settings, mean)
  if any(settings.color_jitter):
    stages["jitter"] = lambda key, x: color.jitter(key, x, settings.color_jitter)
  if settings.random_erasing:
    zero = settings.random_erasing_fill == "zero"
    erase = cropping.random_erasing if zero else cropping.noise_erasing
    stages["erasing"] = lambda key, x: erase(key, x, settings.random_erasing)
  return stages


def _randaugment(settings: AugmentSettings, mean: Any) -> ImageStage:
  count, magnitude = settings.randaugment
  draw = randaugment.Sampler(
    int(count), magnitude, settings.randaugment_std, settings.randaugment_probability
  )
  how = settings.interpolation
  if settings.randaugment_operations == "increasing":
    return lambda key, x: randaugment.increasing(key, x, draw, how, mean)
  return _resampling(lambda key, x, how: autoaugment.randaugment(key, x, draw, how), how)


def _resampling(
  stage: Callable[[jax.Array, jax.Array, str], jax.Array], interpolation: str
) -> ImageStage:
  """Returns `stage` with an interpolation; for "random" each call draws bicubic or bilinear."""
  if interpolation != "random":
    return lambda key, x: stage(key, x, interpolation)

  def either(key: jax.Array, x: jax.Array) -> jax.Array:
    cubic = jax.random.bernoulli(jax.random.fold_in(key, WHICH_OF_TWO))
    return jnp.where(cubic, stage(key, x, "bicubic"), stage(key, x, "bilinear"))

  return either


def _stream(key: jax.Array, name: str) -> jax.Array:
  return jax.random.fold_in(key, STREAMS.index(name))


def _fold(key: jax.Array, index: jax.Array) -> jax.Array:
  return jax.vmap(lambda i: jax.random.fold_in(key, i))(index)


def _flip(key: jax.Array, image: jax.Array, probability: float, axis: int) -> jax.Array:
  return jnp.where(jax.random.bernoulli(key, probability), jnp.flip(image, axis), image)


def _rotate(key: jax.Array, image: jax.Array, largest: float, interpolation: str) -> jax.Array:
  degrees = jax.random.uniform(key, (), minval=-largest, maxval=largest)
  return image_ops.rotate(image, degrees, interpolation)


def _channels(mean: Sequence[float], std: Sequence[float]) -> dict[str, np.ndarray]:
  """Returns the mean and the factor 1 / std of each channel, which `_normalize` takes."""
  # XLA turns a division by a constant into this product, so a program that contains the numbers
  # has the same bits.
  return {"mean": np.asarray(mean, np.float32), "factor": 1 / np.asarray(std, np.float32)}


def _normalize(image: jax.Array, mean: Any, factor: Any) -> jax.Array:
  return (image - mean.reshape(1, 1, -1)) * factor.reshape(1, 1, -1)


def _check_images(images: jax.Array, channels: int) -> None:
  if images.ndim != 4 or images.dtype != jnp.uint8 or images.shape[3] != channels:
    raise ConfigError(
      f"images={images.dtype} {tuple(images.shape)} must be uint8 (B, height, width, {channels}),"
      " since data.mean and data.std have one value per channel."
    )
