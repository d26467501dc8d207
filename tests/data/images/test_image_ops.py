"""Rotation agrees with SciPy and Pillow, and resizing and cropping agree with Pillow."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from vitx.data.images import image_ops

RESAMPLING = {
  "nearest": Image.Resampling.NEAREST,
  "bilinear": Image.Resampling.BILINEAR,
  "bicubic": Image.Resampling.BICUBIC,
}


rotate = jax.jit(image_ops.rotate, static_argnums=2)
affine = jax.jit(image_ops.affine, static_argnums=2)
resize = jax.jit(image_ops.resize, static_argnums=(1, 2))
crop_resize = jax.jit(image_ops.crop_resize, static_argnums=(2, 3))


def noise(size, channels=3, seed=0):
  height, width = (size, size) if isinstance(size, int) else size
  return np.random.default_rng(seed).random((height, width, channels), dtype=np.float32)


def pillow(image, function):
  """Applies a function of Pillow images to each channel in float."""
  channels = [Image.fromarray(image[..., c]) for c in range(image.shape[-1])]
  return np.stack([np.asarray(function(channel)) for channel in channels], axis=-1)


@pytest.mark.parametrize("degrees", [8.0, -25.0, 101.0])
@pytest.mark.parametrize(("interpolation", "tolerance"), [("nearest", 0), ("bicubic", 2e-5)])
def test_rotation_agrees_with_pillow(degrees, interpolation, tolerance):
  for size in (16, (10, 24)):
    image = noise(size)
    out = rotate(image, degrees, interpolation)
    expected = pillow(image, lambda x: x.rotate(degrees, RESAMPLING[interpolation]))
    np.testing.assert_allclose(out, np.clip(expected, 0, 1), rtol=0, atol=tolerance)


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_affine_agrees_with_scipy(interpolation):
  image = noise(20, seed=1)
  matrix = np.array([[0.917, 0.313, -1.311], [-0.237, 1.103, 2.429]])
  out = affine(image, matrix.astype(np.float32), interpolation)
  # SciPy counts rows first and puts pixel centers at whole numbers.
  linear = matrix[::-1, 1::-1]
  offset = matrix[::-1, 2] + linear @ [0.5, 0.5] - 0.5
  order = {"bilinear": 1, "nearest": 0}[interpolation]
  for c in range(3):
    expected = ndimage.affine_transform(
      image[..., c].astype(np.float64), linear, offset, order=order, mode="grid-constant"
    )
    np.testing.assert_allclose(out[..., c], expected, atol=2e-5)


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest", "bicubic"])
def test_the_identity_is_exact(interpolation):
  image, matrix = noise(20), np.eye(2, 3, dtype=np.float32)
  np.testing.assert_array_equal(affine(image, matrix, interpolation), image)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(
  ("before", "after", "channels"), [(32, 20, 3), (32, 48, 1), (8, 8, 3), (50, 13, 1), (50, 13, 3)]
)
def test_resize_agrees_with_pillow(interpolation, before, after, channels):
  image = noise(before, channels)
  out = resize(image, (after, after), interpolation)
  if interpolation == "nearest":
    # If a center falls on the edge of two pixels, Pillow's rounding takes either of them.
    source = [math.floor(Fraction(2 * i + 1, 2 * after) * before) for i in range(after)]
    expected = image[source][:, source]
  else:
    expected = pillow(image, lambda x: x.resize((after, after), RESAMPLING[interpolation]))
  np.testing.assert_allclose(out, np.clip(expected, 0, 1), atol=1e-5)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(
  "box", [(0.0, 0.0, 32.0, 32.0), (3.3, 8.1, 20.6, 11.7), (10.0, 2.5, 5, 29)]
)
@pytest.mark.parametrize("size", [(16, 32), (32, 16)])
def test_crop_resize_agrees_with_pillow(interpolation, box, size):
  image = noise(32)
  top, left, height, width = box
  out = crop_resize(image, tuple(map(np.float32, box)), size, interpolation)
  corners = (left, top, left + width, top + height)
  expected = pillow(image, lambda x: x.resize(size[::-1], RESAMPLING[interpolation], box=corners))
  np.testing.assert_allclose(out, np.clip(expected, 0, 1), atol=1e-4)
