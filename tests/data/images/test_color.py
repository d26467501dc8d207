"""Color jitter agrees with Pillow and colorsys, and its draws have the stated ranges."""

import colorsys
import functools

import jax
import numpy as np
import pytest
from PIL import Image, ImageEnhance
from scipy import stats

from vitx.data.images import color


def photo(channels=3):
  levels = np.random.default_rng(3).integers(0, 256, (16, 16, channels), dtype=np.uint8)
  return levels, levels.astype(np.float32) / np.float32(255)


@functools.partial(jax.jit, static_argnums=0)
def run(change, image, factor):
  return change(image, factor)


@functools.partial(jax.jit, static_argnums=2)
def jitter(seed, image, amounts):
  """Returns an image jittered by each of many keys."""
  keys = jax.random.split(jax.random.key(seed), 1500)
  return jax.vmap(lambda key: color.jitter(key, image, amounts))(keys)


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
@pytest.mark.parametrize(
  ("change", "enhancer"),
  [
    (color.brightness, ImageEnhance.Brightness),
    (color.contrast, ImageEnhance.Contrast),
    (color.saturation, ImageEnhance.Color),
  ],
)
def test_jitter_agrees_with_pillow_to_two_levels(change, enhancer, factor):
  levels, image = photo()
  expected = np.asarray(enhancer(Image.fromarray(levels)).enhance(factor), np.float32)
  np.testing.assert_allclose(255 * run(change, image, factor), expected, atol=2)


@pytest.mark.parametrize("change", [color.brightness, color.contrast])
def test_a_single_channel_is_its_own_luma(change):
  _, image = photo(channels=1)
  thrice = np.repeat(image, 3, axis=-1)
  out = np.repeat(run(change, image, 0.6), 3, axis=-1)
  np.testing.assert_allclose(out, run(change, thrice, 0.6), atol=1e-4)


@pytest.mark.parametrize("shift", [-0.5, -0.1, 0.0, 0.02, 0.3])
def test_hue_agrees_with_colorsys(shift):
  _, image = photo()
  image[0, :5] = image[0, :5, :1]  # grays have no hue
  image[1, 0], image[1, 1] = 1.0, 0.0

  def turned(pixel):
    hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
    return colorsys.hsv_to_rgb((hue + shift) % 1.0, saturation, value)

  expected = np.apply_along_axis(turned, -1, image.astype(np.float64))
  np.testing.assert_allclose(run(color.hue, image, shift), expected, atol=1e-5)


@pytest.mark.parametrize("amount", [0.3, 1.5])
def test_factors_are_uniform_in_their_range(amount):
  out = jitter(0, np.full((1, 1, 3), 0.1, np.float32), (amount, 0.0, 0.0, 0.0))
  factors = np.asarray(out, np.float64)[:, 0, 0, 0] / 0.1
  low = max(0.0, 1 - amount)
  assert stats.kstest(factors, stats.uniform(low, 1 + amount - low).cdf).pvalue > 1e-3


def test_hue_turns_are_uniform_in_their_range():
  cyan = np.array([0.0, 1.0, 1.0], np.float32).reshape(1, 1, 3)
  out = np.asarray(jitter(0, cyan, (0.0, 0.0, 0.0, 0.1)), np.float64)
  turns = [colorsys.rgb_to_hsv(*pixel)[0] - 0.5 for pixel in out[:, 0, 0]]
  assert stats.kstest(turns, stats.uniform(-0.1, 0.2).cdf).pvalue > 1e-3
