"""Rotary embeddings are relative, skip prefix tokens, and treat the axes separately."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.ops.layout import TokenLayout
from vitx.ops.rotary import rotary_angles, rotate

KINDS = ("sequence", "axial", "centered")

turn = jax.jit(rotate)


def test_angles_and_pairs_equal_those_by_hand():
  angles = rotary_angles(TokenLayout((2, 2), prefix=1), 4)
  np.testing.assert_allclose(angles, np.arange(5)[:, None] * [1, 0.01], rtol=1e-6)
  x = np.array([1.0, 0, 0, 2], np.float32).reshape(1, 1, 1, 4)
  turned = turn(x, np.array([[np.pi / 2, np.pi]]))
  np.testing.assert_allclose(np.ravel(turned), [0, 1, 0, -2], atol=1e-6)


def test_axial_angles_follow_their_axis():
  angles = rotary_angles(TokenLayout((3, 4)), 8, kind="axial", base=16.0).reshape(3, 4, 2, 2)
  rows, columns = np.indices((3, 4))
  np.testing.assert_allclose(angles[:, :, 0], rows[..., None] * [1, 0.25])
  np.testing.assert_allclose(angles[:, :, 1], columns[..., None] * [1, 0.25])


def test_centered_angles_span_the_image_for_every_grid():
  layout = TokenLayout((2, 4), prefix=3)
  angles = rotary_angles(layout, 8, kind="centered", base=16.0).reshape(11, 2, 2) / np.pi
  np.testing.assert_array_equal(angles[:3], 0)
  rows, columns = np.indices((2, 4)).reshape(2, 8, 1)
  frequencies = np.array([1, 0.25])
  np.testing.assert_allclose(angles[3:, 0], (2 * rows - 1) * frequencies, atol=1e-6)
  np.testing.assert_allclose(angles[3:, 1], (columns - 1.5) * frequencies, atol=1e-6)
  # Four patches of a finer grid share the center of a patch, so their mean is its angle.
  fine = rotary_angles(TokenLayout((4, 8)), 8, kind="centered", base=16.0) / np.pi
  mean = fine.reshape(2, 2, 4, 2, 4).mean((1, 3)).reshape(8, 2, 2)
  np.testing.assert_allclose(mean, angles[3:], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_products_depend_on_the_difference_of_positions_only(kind):
  layout = TokenLayout((4, 5))
  q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
  angles = rotary_angles(layout, 8, kind=kind)
  q, k = (np.asarray(turn(np.repeat(x, 20, axis=1), angles))[0, :, 0] for x in (q, k))
  products = (q @ k.T).reshape(4, 5, 4, 5)
  np.testing.assert_allclose(products[:3, :4, :3, :4], products[1:, 1:, 1:, 1:], atol=1e-5)
  assert np.std(products) > 0.01


def test_rotation_keeps_norms_and_the_prefix():
  layout = TokenLayout((3, 3), prefix=2)
  x = np.random.default_rng(1).normal(size=(2, 11, 3, 8)).astype(np.float32)
  for kind in KINDS:
    turned = np.asarray(turn(x, rotary_angles(layout, 8, kind=kind)))
    np.testing.assert_array_equal(turned[:, :2], x[:, :2])
    assert not np.allclose(turned[:, 2], x[:, 2])
    norms = [np.linalg.norm(y, axis=-1) for y in (turned, x)]
    np.testing.assert_allclose(*norms, rtol=1e-5)
  half = jax.eval_shape(rotate, x.astype(jnp.bfloat16), rotary_angles(layout, 8))
  assert half.dtype == jnp.bfloat16
