"""An image seen on a transformed grid, with Pillow's own rules: `Image.transform(..., fillcolor)`.

Where a position lies in the image, the pixels around it are weighted, those beyond the edge being
the edge's own; where it lies outside there is the fill. (`image_ops.affine` interpolates towards
zeros instead, so that an edge that moves is smooth.)
"""

import jax
import jax.numpy as jnp


def sample(
  image: jax.Array, matrix: jax.Array, cubic: jax.Array | bool, fill: jax.Array
) -> jax.Array:
  """Samples the image as Pillow's affine transform does.

  Args:
    image: (H, W, C) float.
    matrix: (2, 3); an output pixel at (x, y) shows the input at `matrix @ (x, y, 1)`, its center
      lying at a whole number and a half.
    cubic: whether to sample bicubically, else bilinearly; may be traced.
    fill: (C,), shown where a position lies outside.

  Returns:
    (H, W, C), not clipped: bicubic sampling may leave the range of the image.
  """
  H, W, C = image.shape
  x = (jnp.arange(W, dtype=jnp.float32) + 0.5)[None, :]
  y = (jnp.arange(H, dtype=jnp.float32) + 0.5)[:, None]
  column = matrix[0, 0] * x + matrix[0, 1] * y + matrix[0, 2]
  row = matrix[1, 0] * x + matrix[1, 1] * y + matrix[1, 2]
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


def _taps(
  position: jax.Array, size: int, cubic: jax.Array | bool
) -> tuple[list[jax.Array], list[jax.Array]]:
  """Returns the pixels along one axis that a position takes part of, and their weights."""
  first = jnp.floor(position - 0.5)
  d = position - 0.5 - first
  linear = [jnp.zeros_like(d), 1 - d, d, jnp.zeros_like(d)]
  # Keys (1981) with a = -1, which Pillow's transform has (its `resize` has a = -1/2).
  keys = [-d + 2 * d**2 - d**3, 1 - 2 * d**2 + d**3, d + d**2 - d**3, d**3 - d**2]
  both = [jnp.where(cubic, k, w) for k, w in zip(keys, linear, strict=True)]
  # A position outside, which shows the fill, may be any number.
  first = jnp.clip(first, -1, size).astype(jnp.int32)
  taps = [jnp.clip(first + offset, 0, size - 1) for offset in (-1, 0, 1, 2)]
  return (taps[1:3], linear[1:3]) if cubic is False else (taps, both)
