"""The operations agree with Pillow; RandAugment and AutoAugment draw them as often as stated."""

import functools
import itertools

import jax
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats
from scipy.spatial.distance import cdist

from vitx.data.images import autoaugment
from vitx.data.images.randaugment import Sampler


def levels(size, channels=3, seed=0):
  """Returns a picture with structure and noise, which every operation changes differently."""
  rng = np.random.default_rng(seed)
  ramp = np.linspace(20, 180, size)[:, None, None] * np.linspace(0.4, 1, channels)
  picture = (
    ramp + np.linspace(0, 50, size)[None, :, None] + rng.normal(0, 12, (size, size, channels))
  )
  return np.clip(picture, 3, 240).astype(np.uint8)


PICTURE = levels(21)


def moved(image, matrix):
  return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


def enhanced(enhancer):
  return lambda image, strength: enhancer(image).enhance(1 + 0.9 * strength)


def pixels(image, strength):
  return int(strength * 150 / 331 * image.width)


PILLOW = {
  "identity": lambda image, s: image,
  "shear_x": lambda image, s: moved(image, (1, 0.3 * s, 0, 0, 1, 0)),
  "shear_y": lambda image, s: moved(image, (1, 0, 0, 0.3 * s, 1, 0)),
  "translate_x": lambda image, s: moved(image, (1, 0, pixels(image, s), 0, 1, 0)),
  "translate_y": lambda image, s: moved(image, (1, 0, 0, 0, 1, pixels(image, s))),
  "rotate": lambda image, s: image.rotate(30 * s),
  "brightness": enhanced(ImageEnhance.Brightness),
  "color": enhanced(ImageEnhance.Color),
  "contrast": enhanced(ImageEnhance.Contrast),
  "sharpness": enhanced(ImageEnhance.Sharpness),
  "posterize": lambda image, s: ImageOps.posterize(image, 8 - round(4 * abs(s))),
  "solarize": lambda image, s: ImageOps.solarize(image, 256 * (1 - abs(s))),
  "autocontrast": lambda image, s: ImageOps.autocontrast(image),
  "equalize": lambda image, s: ImageOps.equalize(image),
  "invert": lambda image, s: ImageOps.invert(image),
}
EXACT = {"identity", "posterize", "solarize", "equalize", "invert"}


def to_pillow(array):
  return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def pillow(name, array, strength):
  out = np.asarray(PILLOW[name](to_pillow(array), strength))
  return out.reshape(array.shape)


compiled = jax.jit(autoaugment.operate, static_argnums=3)


def operate(name, array, strength, interpolation="nearest"):
  which = np.int32(autoaugment.OPERATIONS.index(name))
  image = array.astype(np.float32)
  return np.asarray(compiled(image, which, np.float32(strength), interpolation))


def test_the_operations_match_the_paper():
  assert set(autoaugment.OPERATIONS) == set(PILLOW)
  assert autoaugment.OPERATIONS[autoaugment.RANDAUGMENT :] == ("invert",)
  assert autoaugment.RANDAUGMENT == 14


@pytest.mark.parametrize("name", autoaugment.OPERATIONS)
@pytest.mark.parametrize("strength", [-0.93, -0.31, 0.0, 0.53, 1.0])
@pytest.mark.parametrize(("size", "channels"), [(33, 3), (24, 1)])
def test_operations_agree_with_pillow(name, strength, size, channels):
  array = levels(size, channels)
  if name in ("equalize", "autocontrast"):
    array = array // 2 + 20  # leaves something to stretch
  out = operate(name, array, strength)
  expected = pillow(name, array, strength)
  geometric = name in autoaugment.GEOMETRIC
  np.testing.assert_allclose(out, expected, atol=0 if geometric or name in EXACT else 1)
  np.testing.assert_array_equal(out, np.round(out))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equalize", "autocontrast"])
def test_unusual_histograms_agree_with_pillow(name):
  rng = np.random.default_rng(1)
  plain = np.full((20, 20, 3), (0, 77, 255), np.uint8)
  small = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)  # fewer pixels than levels
  two = rng.choice(np.array([9, 200], np.uint8), (40, 40, 3))
  spike = np.where(rng.random((40, 40, 3)) < 0.8, 255, rng.integers(0, 256, (40, 40, 3)))
  many = rng.integers(0, 256, (40, 40, 3))
  for array in (plain, small, two, spike.astype(np.uint8), many.astype(np.uint8)):
    tolerance = 0 if name == "equalize" else 1
    np.testing.assert_allclose(operate(name, array, 0.0), pillow(name, array, 0), atol=tolerance)


@pytest.mark.parametrize("name", autoaugment.GEOMETRIC)
def test_bilinear_keeps_a_plain_image(name):
  """The weighted mean of equal values is that value, though float32 may miss it by a little."""
  for level in (1, 100, 199, 255):
    plain = np.full((32, 32, 3), level, np.uint8)
    out = operate(name, plain, 0.43, "bilinear")
    assert (out[10:22, 10:22] == level).all()


@functools.cache
def mapped(function):
  return jax.jit(jax.vmap(function, in_axes=(0, None, None)))


def draws(function, count, magnitude=0.0):
  keys = jax.random.split(jax.random.key(5), count)
  image = PICTURE.astype(np.float32) / np.float32(255)
  return np.round(255 * np.asarray(mapped(function)(keys, image, magnitude)))


def cifar_policy(key, image, _):
  return autoaugment.autoaugment(key, image, "nearest")


@pytest.mark.slow  # compiles 15 operations
def test_randaugment_applies_the_operations_that_the_sampler_draws():
  image = PICTURE.astype(np.float32) / np.float32(255)
  sampler = Sampler(2, 7.0, probability=0.8)
  apply = jax.jit(lambda key: autoaugment.randaugment(key, image, sampler, "nearest"))
  for key in jax.random.split(jax.random.key(5), 8):
    expected = PICTURE
    for which, strength, applied in zip(*map(np.asarray, sampler(key, 14)), strict=True):
      if applied:
        expected = operate(autoaugment.OPERATIONS[which], expected, strength)
    np.testing.assert_allclose(255 * np.asarray(apply(key)), expected, atol=1e-3)


def test_the_cifar_policy_is_well_formed():
  assert len(autoaugment.CIFAR_POLICY) == 25
  names, probabilities, strengths = zip(*itertools.chain(*autoaugment.CIFAR_POLICY), strict=True)
  assert set(names) <= set(autoaugment.OPERATIONS)
  assert all(round(10 * p) == 10 * p and 0 <= p <= 0.9 for p in probabilities)
  assert all(level in range(10) for level in strengths)
  # Sums over the paper's table, as a check of the copy.
  assert sum(name == "equalize" for name in names) == 9
  assert round(10 * sum(probabilities)) == 265 and sum(strengths) == 187


@pytest.mark.slow
def test_autoaugment_draws_the_pairs_of_the_policy_with_their_probabilities():
  chances = {}  # the probability of each picture that Pillow makes; pairs may share a picture
  for pair in autoaugment.CIFAR_POLICY:
    for signs in itertools.product((0, 1, -1), repeat=2):  # 0: not applied
      image, chance = to_pillow(PICTURE), 1 / 25
      for (name, probability, level), sign in zip(pair, signs, strict=True):
        image = PILLOW[name](image, sign * level / 9) if sign else image
        chance *= probability / 2 if sign else 1 - probability
      chances[image.tobytes()] = chances.get(image.tobytes(), 0.0) + chance
  pictures = np.stack([np.frombuffer(x, np.uint8).reshape(PICTURE.shape) for x in chances])
  expected = 1500 * np.array(list(chances.values()))
  counts = np.zeros(len(pictures))
  flat = lambda images: images[:, ::2, ::2].reshape(len(images), -1)  # noqa: E731
  outputs = flat(draws(cifar_policy, 1500))
  errors = cdist(outputs, flat(pictures), "cityblock") / outputs.shape[1]
  np.add.at(counts, errors.argmin(1), 1)
  # A first operation that rounds the other way by a level is amplified by the second.
  assert errors.min(1).max() < 1.0
  common = expected > 8
  assert common.sum() > 30
  observed = np.append(counts[common], counts[~common].sum())
  assert (
    stats.chisquare(observed, np.append(expected[common], expected[~common].sum())).pvalue > 1e-3
  )
