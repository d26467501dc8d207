"""Sampling of an image on a transformed grid by the rules of Pillow's `Image.transform`.

A position inside the image gets a weighted sum of the pixels around it, where the pixels of the
edge are repeated outwards. A position outside gets the fill color. (Bilinear `image_ops.affine`
interpolates towards zeros at the edges instead, so that the edge of a moved image is smooth.)
"""

import jax
import jax.numpy as jnp


def sample(
  image: jax.Array, matrix: jax.Array, cubic: jax.Array | bool, fill: jax.Array
) -> jax.Array:
  """Samples the image as Pillow's affine transform does.

  Args:
    image: A float image (H, W, C).
    matrix: The transform (2, 3): the output at (x, y) shows the input at `matrix @ (x, y, 1)`;
      pixel centers have coordinates i + 1/2.
    cubic: Whether to sample bicubically, else bilinearly; may be traced.
    fill: The color of positions outside the image, (C,).

  Returns:
    The sampled image (H, W, C), not clipped: bicubic sampling may leave the range of the image.
  """
  H, W, C = image.shape
  row, column = find_positions(matrix, H, W)
  inside = (column >= 0) & (column < W) & (row >= 0) & (row < H)
  columns, across = _taps(column, W, cubic)
  rows, down = _taps(row, H, cubic)
  pixels = image.reshape(H * W, C)
  out = jnp.zeros_like(image)
  for i, weight in zip(rows, down, strict=True):
    line = jnp.zeros_like(image)
    for j, share in zip(columns, across, strict=True):
      line += share[..., None] * pixels.at[i * W + j].get(mode="promise_in_bounds")
    out += weight[..., None] * line
  return jnp.where(inside[..., None], out, fill[None, None, :])


def find_positions(matrix: jax.Array, H: int, W: int) -> tuple[jax.Array, jax.Array]:
  """Returns the input's row and column that each pixel of the output shows, (H, W) each."""
  x = (jnp.arange(W, dtype=jnp.float32) + 0.5)[None, :]
  y = (jnp.arange(H, dtype=jnp.float32) + 0.5)[:, None]
  column, row = (line[0] * x + line[1] * y + line[2] for line in matrix)
  return row, column


def _taps(
  position: jax.Array, size: int, cubic: jax.Array | bool
) -> tuple[list[jax.Array], list[jax.Array]]:
  """Returns the indices and the weights, along one axis, of the pixels around each position."""
  first = jnp.floor(position - 0.5)
  d = position - 0.5 - first
  linear = [jnp.zeros_like(d), 1 - d, d, jnp.zeros_like(d)]
  # Keys (1981) with a = -1 as in Pillow's transform; Pillow's `resize` uses a = -1/2.
  keys = [-d + 2 * d**2 - d**3, 1 - 2 * d**2 + d**3, d + d**2 - d**3, d**3 - d**2]
  weights = [jnp.where(cubic, k, w) for k, w in zip(keys, linear, strict=True)]
  # Positions outside the image, which get the fill color, may be any number: their indices are
  # clipped.
  first = jnp.clip(first, -1, size).astype(jnp.int32)
  taps = [jnp.clip(first + offset, 0, size - 1) for offset in (-1, 0, 1, 2)]
  return (taps[1:3], linear[1:3]) if cubic is False else (taps, weights)
