"""Geometry of one float image (H, W, C): affine sampling, resizing and resized crops.

Coordinates follow Pillow: the pixel at row i, column j covers [j, j + 1) x [i, i + 1), so its
center is (j + 0.5, i + 0.5). Everything outside the image is zero. All functions may be mapped over
a batch with `jax.vmap`; sizes and interpolations are static, other arguments may vary by example.
"""

import jax
import jax.numpy as jnp
import numpy as np

from vitx.data.images import sampling


def stack_matrix(*rows: tuple) -> jax.Array:
  """Returns a float32 matrix from rows of numbers, which may be traced."""
  return jnp.stack([jnp.stack([jnp.float32(value) for value in row]) for row in rows])


def affine(image: jax.Array, matrix: jax.Array, interpolation: str) -> jax.Array:
  """Samples the image on a transformed grid.

  Args:
    image: A float image (H, W, C).
    matrix: The transform (2, 3): the output at (x, y) shows the input at `matrix @ (x, y, 1)`.
    interpolation: One of nearest, bilinear and bicubic. bilinear interpolates towards zeros at the
      edges; bicubic follows Pillow's rules at the edges, see `sampling`, and is not clipped.

  Returns:
    The sampled image (H, W, C). The identity matrix returns the image exactly.
  """
  H, W, C = image.shape
  if interpolation == "bicubic":
    return sampling.sample(image, matrix, True, jnp.zeros(C, image.dtype))
  row, column = sampling.find_positions(matrix, H, W)
  if interpolation == "bilinear":
    column, row = column - 0.5, row - 0.5
  # A border of zeros (one pixel before, two after) represents everything outside, so that neither
  # the clipped position nor its right and lower neighbors need a test.
  border = jnp.pad(image, ((1, 2), (1, 2), (0, 0))).reshape((H + 3) * (W + 3), C)
  column, row = jnp.clip(column, -1.0, W) + 1.0, jnp.clip(row, -1.0, H) + 1.0
  left, top = jnp.floor(column), jnp.floor(row)
  first = top.astype(jnp.int32) * (W + 3) + left.astype(jnp.int32)

  def pixel(offset: int) -> jax.Array:
    return border.at[first + offset].get(mode="promise_in_bounds")

  if interpolation == "nearest":
    return pixel(0)
  right, lower = (column - left)[..., None], (row - top)[..., None]
  above = pixel(0) * (1.0 - right) + pixel(1) * right
  below = pixel(W + 3) * (1.0 - right) + pixel(W + 4) * right
  return above * (1.0 - lower) + below * lower


def box_mask(box: tuple[jax.Array, ...], down: jax.Array, across: jax.Array) -> jax.Array:
  """Returns a mask of the pixels whose positions are in a box, bool (H, W, 1).

  Args:
    box: The (top, left, height, width), scalars.
    down: The position of each row, (H,).
    across: The position of each column, (W,).
  """
  top, left, height, width = box
  rows = (down >= top) & (down < top + height)
  columns = (across >= left) & (across < left + width)
  return rows[:, None, None] & columns[None, :, None]


def rotation(degrees: jax.Array, height: int, width: int) -> jax.Array:
  """Returns the matrix (2, 3) for `affine` that rotates counter-clockwise about the center."""
  angle = jnp.deg2rad(degrees)
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  x, y = 0.5 * width, 0.5 * height  # the center
  right, down = x * (1.0 - cos + sin), y * (1.0 - sin - cos)
  if x != y:  # the terms are zero for a square, but adding them would change bits
    right, down = right + (y - x) * sin, down + (y - x) * sin
  return jnp.stack([jnp.stack([cos, -sin, right]), jnp.stack([sin, cos, down])])


def rotate(image: jax.Array, degrees: jax.Array, interpolation: str) -> jax.Array:
  """Rotates an image (H, W, C) counter-clockwise about its center; the corners become zero.

  Values are in 0..1, and bicubic overshoot is clipped to this range.
  """
  turned = affine(image, rotation(degrees, *image.shape[:2]), interpolation)
  return jnp.clip(turned, 0.0, 1.0) if interpolation == "bicubic" else turned


def resize(image: jax.Array, size: tuple[int, int], interpolation: str) -> jax.Array:
  """Resizes an image of values 0..1 to (height, width, C), antialiased where it shrinks.

  Bicubic overshoot is clipped to 0..1. An image that already has the size is returned unchanged.
  """
  if image.shape[:2] == size:
    return image
  if interpolation == "nearest":
    # Whole numbers are exact; jax.image.resize errs at some sizes where a center falls on an edge.
    rows, columns = (
      (2 * np.arange(new) + 1) * old // (2 * new)
      for new, old in zip(size, image.shape[:2], strict=True)
    )
    return image[rows][:, columns]
  out = jax.image.resize(image, (*size, image.shape[2]), interpolation, antialias=True)
  return jnp.clip(out, 0.0, 1.0)


def crop_resize(
  image: jax.Array, box: tuple[jax.Array, ...], size: tuple[int, int], interpolation: str
) -> jax.Array:
  """Cuts a box out of an image (H, W, C) and resizes it to (height, width, C).

  Args:
    image: A float image (H, W, C).
    box: The (top, left, height, width) in pixels, possibly fractional, inside the image.
    size: The (height, width) of the result.
    interpolation: One of nearest, bilinear and bicubic. bilinear and bicubic are antialiased where
      the box shrinks, and pixels just outside the box contribute, as in Pillow's `resize(box=...)`.
      Bicubic overshoot is clipped to 0..1.
  """
  H, W, C = image.shape
  top, left, height, width = box
  if interpolation == "nearest":
    down, across = ((jnp.arange(n, dtype=jnp.float32) + 0.5) / n for n in size)
    row = jnp.clip((top + down * height).astype(jnp.int32), 0, H - 1)
    column = jnp.clip((left + across * width).astype(jnp.int32), 0, W - 1)
    return image.at[row[:, None], column[None, :]].get(mode="promise_in_bounds")
  scale = jnp.asarray(size, jnp.float32) / jnp.stack([height, width])
  shift = -jnp.stack([top, left]) * scale
  method = {"bilinear": "linear", "bicubic": "cubic"}[interpolation]
  out = jax.image.scale_and_translate(image, (*size, C), (0, 1), scale, shift, method)
  return jnp.clip(out, 0.0, 1.0) if interpolation == "bicubic" else out
