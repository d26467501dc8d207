"""Random crops and erased boxes have the stated positions, areas and frequencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.data.examples import GOLDEN
from vitx.data.images import cropping, image_ops


def drawn(draw, count):
  """Returns the values that a function draws from each of many keys, as NumPy arrays."""
  keys = lambda: jax.random.split(jax.random.key(0), count)  # noqa: E731
  return jax.tree.map(np.asarray, jax.jit(lambda: jax.vmap(draw)(keys()))())


def test_pad_crop_cuts_every_position_of_the_padded_image_equally_often():
  image = np.random.default_rng(0).random((6, 6, 1), dtype=np.float32) + 0.1
  crops = drawn(lambda key: cropping.pad_crop(key, jnp.asarray(image), 2), 2000)
  padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
  windows = [padded[i : i + 6, j : j + 6] for i in range(5) for j in range(5)]
  matches = (crops[:, None] == np.stack(windows)).all((2, 3, 4))
  np.testing.assert_array_equal(matches.sum(1), 1)
  assert stats.chisquare(matches.sum(0)).pvalue > 1e-3


def test_boxes_have_the_requested_area_and_ratio():
  area, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
  boxes = drawn(lambda key: cropping.random_box(key, area, ratio), 3000)
  top, left, height, width = (side.astype(np.float64) for side in boxes)
  assert (top >= 0).all() and (left >= 0).all()
  assert (top + height <= 1 + 1e-6).all() and (left + width <= 1 + 1e-6).all()
  assert stats.kstest(height * width, stats.uniform(0.08, 0.92).cdf).pvalue > 1e-3
  aspect = width / height
  assert aspect.min() >= 0.7499 and aspect.max() <= 1.3334
  # Where any ratio fits, its logarithm is uniform, and so is the position in what is left over.
  free = height * width < 0.7
  log_range = stats.uniform(np.log(3 / 4), np.log(16 / 9))
  assert stats.kstest(np.log(aspect[free]), log_range.cdf).pvalue > 1e-3
  assert stats.kstest((top / (1 - height))[free], stats.uniform.cdf).pvalue > 1e-3


@pytest.mark.parametrize("aspect", [2, 1 / 3])
def test_large_boxes_of_long_images_keep_the_ratio(aspect):
  ratio = (0.75 / aspect, 4 / 3 / aspect)
  _, _, height, width = drawn(lambda key: cropping.random_box(key, (0.08, 1.0), ratio), 300)
  assert (aspect * width / height).min() >= 0.749 and (aspect * width / height).max() <= 1.334
  largest = min(ratio[1], 1 / ratio[0])
  np.testing.assert_allclose((height * width).max(), largest, rtol=1e-5)


def test_a_random_resized_crop_shows_its_box():
  # On a ramp of coordinates a crop shows where it was taken.
  ramp = np.stack(np.meshgrid(np.arange(64) + 0.5, np.arange(64) + 0.5), axis=-1).astype(np.float32)

  def draw(key):
    box = [64 * side for side in cropping.random_box(key, (0.1, 0.5), cropping.CROP_RATIO)]
    out = cropping.random_resized_crop(key, jnp.asarray(ramp), (0.1, 0.5), (16, 16), "nearest")
    return out, box, image_ops.crop_resize(jnp.asarray(ramp), box, (16, 16), "nearest")

  outs, boxes, sames = drawn(draw, 5)
  for out, (top, left, height, width), same in zip(outs, np.stack(boxes, 1), sames, strict=True):
    inside = (np.arange(16) + 0.5) / 16
    np.testing.assert_allclose(out[0, :, 0], left + inside * width, atol=0.51)
    np.testing.assert_allclose(out[:, 0, 1], top + inside * height, atol=0.51)
    np.testing.assert_array_equal(out, same)


def test_a_crop_of_a_rectangle_has_its_ratio_in_pixels():
  wide = np.stack(np.meshgrid(np.arange(80) + 0.5, np.arange(40) + 0.5), axis=-1)
  image = jnp.asarray(wide, jnp.float32)
  outs = drawn(
    lambda key: cropping.random_resized_crop(key, image, (0.1, 0.3), (8, 16), "nearest"), 40
  )
  assert outs.shape == (40, 8, 16, 2)
  across, down = outs[:, 0, -1, 0] - outs[:, 0, 0, 0], outs[:, -1, 0, 1] - outs[:, 0, 0, 1]
  ratio = (across * 16 / 15) / (down * 8 / 7)
  assert ratio.min() > 0.6 and ratio.max() < 1.7 and ratio.std() > 0.1
  assert outs[..., 0].max() > 70 and outs[..., 1].max() > 35  # from the whole of it


@pytest.mark.parametrize("erase", [cropping.random_erasing, cropping.noise_erasing])
def test_an_erased_box_is_inside_a_rectangle(erase):
  out = drawn(lambda key: erase(key, jnp.full((16, 48, 1), 7.0), 0.5), 400)[..., 0] != 7
  assert abs(out.any((1, 2)).sum() - 200) < 4 * np.sqrt(400 / 4)
  rows, columns = out.any(2), out.any(1)
  np.testing.assert_array_equal(out, rows[:, :, None] & columns[:, None, :])  # one box each
  share = out.mean((1, 2))
  assert share.max() < 0.4 and abs(share[share > 0].mean() - 0.17) < 0.04
  assert columns.any(0)[40:].all() and rows.any(0).all()


def test_a_box_agrees_with_timm_for_equal_numbers():
  fit = jax.jit(cropping.fit_box, static_argnums=(1, 2))
  for shares, (size, *box) in zip(GOLDEN["erasing_shares"], GOLDEN["erasing_boxes"], strict=True):
    fitted = fit(shares.astype(np.float32), int(size), int(size))
    assert [int(x) for x in fitted[2:]] == box[2:]
    assert box[2] == 0 or [int(x) for x in fitted[:2]] == box[:2]


@pytest.mark.slow
def test_noise_erasing_draws_each_pixel_of_its_box():
  out = drawn(lambda key: cropping.noise_erasing(key, jnp.full((32, 32, 3), 7.0), 0.25), 1000)
  hole = (out != 7).any(-1)
  assert (out[hole] != 7).all()  # every channel
  erased = hole.any((1, 2))
  assert abs(erased.sum() - 250) < 4 * np.sqrt(1000 * 0.25 * 0.75)
  rows, columns = hole.any(2), hole.any(1)
  np.testing.assert_array_equal(hole, rows[:, :, None] & columns[:, None, :])
  assert stats.kstest(out[hole][:5000].ravel(), stats.norm.cdf).pvalue > 1e-3
  noise = out[erased][:, :, :, 0][hole[erased]], out[erased][:, :, :, 1][hole[erased]]
  assert abs(np.corrcoef(*noise)[0, 1]) < 4 / np.sqrt(len(noise[0]))
