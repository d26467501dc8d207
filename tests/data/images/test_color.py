"""Color jitter against Pillow and colorsys; the draws against their ranges."""

import colorsys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance
from scipy import stats

from vitx.data.images import color


def photo(channels=3):
  levels = np.random.default_rng(3).integers(0, 256, (16, 16, channels), dtype=np.uint8)
  return levels, jnp.asarray(levels, jnp.float32) / 255


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
  np.testing.assert_allclose(255 * change(image, jnp.float32(factor)), expected, atol=2)


@pytest.mark.parametrize("change", [color.brightness, color.contrast])
def test_one_channel_is_its_own_luma(change):
  _, image = photo(channels=1)
  thrice = jnp.repeat(image, 3, axis=-1)
  out = change(image, jnp.float32(0.6))
  np.testing.assert_allclose(jnp.repeat(out, 3, -1), change(thrice, jnp.float32(0.6)), atol=1e-4)


@pytest.mark.parametrize("shift", [-0.5, -0.1, 0.0, 0.02, 0.3])
def test_hue_agrees_with_colorsys(shift):
  _, image = photo()
  image = image.at[0, :5].set(image[0, :5, :1])  # grays have no hue
  image = image.at[1, 0].set(1.0).at[1, 1].set(0.0)

  def turned(pixel):
    hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
    return colorsys.hsv_to_rgb((hue + shift) % 1.0, saturation, value)

  expected = np.apply_along_axis(turned, -1, np.asarray(image, np.float64))
  np.testing.assert_allclose(color.hue(image, jnp.float32(shift)), expected, atol=1e-5)


@pytest.mark.parametrize("amount", [0.3, 1.5])
def test_factors_are_uniform_in_their_range(amount):
  keys = jax.random.split(jax.random.key(0), 1500)
  pixel = jnp.full((1, 1, 3), 0.1)
  out = jax.vmap(lambda key: color.jitter(key, pixel, (amount, 0.0, 0.0, 0.0)))(keys)
  factors = np.asarray(out[:, 0, 0, 0], np.float64) / 0.1
  low = max(0.0, 1 - amount)
  assert stats.kstest(factors, stats.uniform(low, 1 + amount - low).cdf).pvalue > 1e-3


@pytest.mark.slow
def test_hue_turns_are_uniform_in_their_range():
  keys = jax.random.split(jax.random.key(0), 1500)
  cyan = jnp.array([0.0, 1.0, 1.0]).reshape(1, 1, 3)
  out = jax.vmap(lambda key: color.jitter(key, cyan, (0.0, 0.0, 0.0, 0.1)))(keys)
  turns = [colorsys.rgb_to_hsv(*map(float, pixel))[0] - 0.5 for pixel in out[:, 0, 0]]
  assert stats.kstest(turns, stats.uniform(-0.1, 0.2).cdf).pvalue > 1e-3
