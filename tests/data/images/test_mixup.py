"""Mixup, CutMix and smoothed targets have their defining properties and agree with timm."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.data.examples import GOLDEN
from tests.slow import all_but
from vitx.data import order
from vitx.data.images import mixup as mixing

smooth_targets = jax.jit(mixing.smooth_targets, static_argnums=(1, 2))
keep_around = jax.jit(mixing.keep_around, static_argnums=2)
mix = jax.jit(mixing.mix)


@partial(jax.jit, static_argnums=(3, 4))
def mix_pairs(seed, images, targets, mixup, cutmix):
  """Mixes neighbors; both members of a pair have one key."""
  keys = jnp.repeat(jax.random.split(jax.random.key(seed), len(images) // 2), 2)
  weights = jax.vmap(partial(mixing.draw, size=images.shape[1:3], mixup=mixup, cutmix=cutmix))(keys)
  return mix(images, targets, *weights)


def mixed_pairs(count, size, mixup, cutmix, seed=0):
  """Mixes pairs of an image of ones, class 0, and an image of zeros, class 1.

  Returns the images (pairs, 2, S, S) and the targets (pairs, 2, 2).
  """
  images = np.tile(np.array([1.0, 0.0], np.float32), count).reshape(-1, 1, 1, 1)
  images = np.broadcast_to(images, (2 * count, size, size, 1))
  targets = np.tile(np.eye(2, dtype=np.float32), (count, 1))
  images, targets = mix_pairs(seed, images, targets, mixup, cutmix)
  return np.asarray(images).reshape(count, 2, size, size), np.asarray(targets).reshape(count, 2, 2)


def test_targets_are_smoothed():
  targets = np.asarray(smooth_targets(np.array([0, 3], np.int32), 5, 0.1))
  np.testing.assert_allclose(targets[0], [0.92, 0.02, 0.02, 0.02, 0.02], atol=1e-7)
  np.testing.assert_allclose(targets.sum(1), 1, atol=1e-6)
  plain = smooth_targets(np.array([1], np.int32), 3, 0.0)
  np.testing.assert_array_equal(plain, [[0, 1, 0]])


@pytest.mark.slow
def test_cutmix_of_a_rectangle_cuts_its_shape():
  keep, share = keep_around(np.array([4, 16], np.int32), np.float32(0.75), (8, 32))
  cut = np.asarray(keep)[..., 0] == 0
  assert cut.sum() == 4 * 16 and share == 0.75  # half of either side
  assert cut[2:6, 8:24].all()


@pytest.mark.parametrize("alpha", all_but(3.0, of=(0.2, 3.0)))
def test_mixup_draws_one_beta_share_per_pair(alpha):
  images, targets = mixed_pairs(2000, 2, alpha, 0.0)
  share = images[:, 0, 0, 0]
  np.testing.assert_array_equal(images[:, 0], np.broadcast_to(share[:, None, None], (2000, 2, 2)))
  np.testing.assert_allclose(images[:, 1], 1 - images[:, 0], atol=1e-6)
  np.testing.assert_allclose(targets[:, 0, 0], share, atol=1e-6)
  np.testing.assert_allclose(targets[:, 1, 1], share, atol=1e-6)
  np.testing.assert_allclose(targets.sum(-1), 1, atol=1e-6)
  if alpha >= 1:  # below, shares round to 0 and 1
    assert stats.kstest(share.astype(np.float64), stats.beta(alpha, alpha).cdf).pvalue > 1e-3
  variance = 1 / (4 * (2 * alpha + 1))
  assert abs(share.mean() - 0.5) < 4 * np.sqrt(variance / 2000)
  assert abs(share.var() - variance) < 0.1 * variance


@pytest.mark.slow
def test_cutmix_exchanges_one_box_and_counts_its_pixels():
  images, targets = mixed_pairs(2000, 16, 0.0, 1.0)
  assert set(np.unique(images)) == {0.0, 1.0}
  np.testing.assert_array_equal(images[:, 1], 1 - images[:, 0])  # the same box for both
  cut = images[:, 0] == 0
  rows, columns = cut.any(2), cut.any(1)
  np.testing.assert_array_equal(cut, rows[:, :, None] & columns[:, None, :])
  for side in (rows, columns):  # without gaps
    assert (np.abs(np.diff(np.pad(side, ((0, 0), (1, 1))).astype(int))).sum(1) <= 2).all()
  share = 1 - cut.mean((1, 2))
  np.testing.assert_allclose(targets[:, 0, 0], share, atol=1e-6)
  np.testing.assert_allclose(targets[:, 1, 1], share, atol=1e-6)
  np.testing.assert_allclose(targets.sum(-1), 1, atol=1e-6)
  # The paper's recipe in NumPy: a square of area 1 - Beta(1, 1), centered anywhere, cut at edges.
  rng = np.random.default_rng(0)
  side = (16 * np.sqrt(1 - rng.random(20000))).astype(int)
  low = rng.integers(0, 16, (2, 20000)) - side // 2
  length = np.minimum(low + side, 16) - np.maximum(low, 0)
  expected = 1 - length[0] * length[1] / 256
  assert abs(share.mean() - expected.mean()) < 4 * expected.std() / np.sqrt(2000)
  assert abs(share.std() - expected.std()) < 0.02


@pytest.mark.slow
def test_each_pair_draws_mixup_or_cutmix_equally_often():
  images, targets = mixed_pairs(2000, 8, 1.0, 1.0)
  blended = ((images[:, 0] > 0) & (images[:, 0] < 1)).any((1, 2))
  assert abs(blended.sum() - 1000) < 4 * np.sqrt(500)
  np.testing.assert_allclose(images[:, 0].mean((1, 2)), targets[:, 0, 0], atol=1e-6)


def test_only_neighbors_are_mixed():
  images = np.broadcast_to(np.arange(6, dtype=np.float32).reshape(6, 1, 1, 1), (6, 4, 4, 1))
  keep = np.repeat(np.float32([0.2, 0.9, 0.5]), 2)
  weights = np.broadcast_to(keep[:, None, None, None], (6, 4, 4, 1)), keep
  images, targets = mix(images, np.eye(6, dtype=np.float32), *weights)
  pairs = np.kron(np.eye(3), np.ones((2, 2)))
  assert (np.asarray(targets)[pairs == 0] == 0).all()
  np.testing.assert_allclose(images[:, 0, 0, 0], targets @ np.arange(6.0), atol=1e-5)


def test_one_share_for_the_batch_agrees_with_timm():
  """timm mixes a batch with its reverse; in vitx, the images of such a pair are neighbors."""
  rows = order.places(np.arange(6), 6, repeats=3)
  assert rows.tolist() == [0, 5, 1, 4, 2, 3]
  images, labels = GOLDEN["mix_images"][rows], GOLDEN["mix_labels"][rows]
  targets = smooth_targets(labels, 5, 0.1)
  for i, (share, cut, *center) in enumerate(GOLDEN["mix_cases"]):
    keep, weight = np.full((9, 9, 1), share, np.float32), np.float32(share)
    if cut:
      keep, weight = keep_around(np.array(center, np.int32), weight, (9, 9))
    mixed = mix(images, targets, np.asarray(keep)[None], np.asarray(weight)[None])
    np.testing.assert_allclose(mixed[0], GOLDEN[f"mix_{i}"][rows], atol=1e-6)
    np.testing.assert_allclose(mixed[1], GOLDEN[f"mix_targets_{i}"][rows], atol=1e-6)
