"""The gradient of strided slicing of a grid."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from vitx.ops.shapes import Array, Float


def spread(
  x: Float[Array, "B ... C"], start: Sequence[int], extents: Sequence[int], stride: int
) -> Float[Array, "B ... C"]:
  """Returns a grid of zeros with values at regular places: the gradient of strided slicing.

  This is one padding operation. Adding the values to a grid of zeros would write the whole grid.

  Args:
    x: The values, (B, n, ..., n', C).
    start: The first place along each axis of the grid.
    extents: The extents g, ..., g' of the result, large enough for all places.
    stride: The step from one place to the next, along every axis.

  Returns:
    The grid, (B, g, ..., g', C).
  """
  axes = [
    (first, whole - first - stride * (count - 1) - 1, stride - 1)
    for first, whole, count in zip(start, extents, x.shape[1:-1], strict=True)
  ]
  return jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *axes, (0, 0, 0)])
