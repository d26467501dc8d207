"""Max pooling of images, which a CPU computes as the maximum of shifted images.

XLA's own pooling on a CPU reads the elements of a window one by one, and computes the gradient from
a list of the places of the maxima: this took two fifths of the time of a training step of CCT.
Other platforms use XLA's pooling.
"""

import functools
import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from vitx.ops.kernels.shifts import spread
from vitx.ops.shapes import Array, Float


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def max_pool(
  x: Float[Array, "B rows columns C"], size: int, stride: int, padding: int
) -> Float[Array, "B ... C"]:
  """Takes the largest value of each window.

  If several values of a window are largest, the first one gets the gradient.

  Args:
    x: The images, (B, rows, columns, C).
    size: The number K of rows and of columns in a window.
    stride: The step between windows, along both axes.
    padding: The number of rows and columns added on each side, less than K; padding is never the
      largest value.

  Returns:
    The result (B, rows', columns', C), where rows' is (rows + 2 padding - K) // stride + 1.
  """
  window: Any = {"size": size, "stride": stride, "padding": padding}
  return jax.lax.platform_dependent(
    x, cpu=partial(_take_largest, **window), default=partial(_pool_windows, **window)
  )


def _pool_windows(x: jax.Array, size: int, stride: int, padding: int) -> jax.Array:
  """Computes `max_pool` by XLA's reduction over windows."""
  around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
  return jax.lax.reduce_window(  # by a plain -inf JAX recognizes max pooling and its gradient
    x, -jnp.inf, jax.lax.max, (1, size, size, 1), (1, stride, stride, 1), around
  )


def _take_largest(x: jax.Array, size: int, stride: int, padding: int) -> jax.Array:
  """Computes `max_pool` from shifted images, first over rows and then over columns of windows."""
  for axis in (1, 2):
    padded = _pad(x, padding, -jnp.inf, (axis,))
    shifted = (_shift(padded, i, size, stride, axis) for i in range(size))
    x = functools.reduce(jnp.maximum, shifted)
  return x


def _forward(x, size, stride, padding):
  out = max_pool(x, size, stride, padding)
  return out, (x, out)


def _backward(size, stride, padding, saved, d_out):
  window: Any = {"size": size, "stride": stride, "padding": padding}

  def by_windows(x, out, d_out):
    return jax.vjp(partial(_pool_windows, **window), x)[1](d_out)[0]

  return (
    jax.lax.platform_dependent(
      *saved, d_out, cpu=partial(_spread_gradient, **window), default=by_windows
    ),
  )


def _spread_gradient(x, out, d_out, size: int, stride: int, padding: int) -> jax.Array:
  """Returns the gradient of `max_pool`, which goes to the first largest value of a window."""
  padded = _pad(x, padding, -jnp.inf, (1, 2))
  gradient, is_pending = jnp.zeros(padded.shape, d_out.dtype), jnp.ones(out.shape, bool)
  for start in itertools.product(range(size), repeat=2):
    shifted = padded
    for axis in (1, 2):
      shifted = _shift(shifted, start[axis - 1], size, stride, axis)
    is_first = is_pending & (shifted == out)
    is_pending = is_pending & ~is_first
    won = jnp.where(is_first, d_out, jnp.zeros((), d_out.dtype))
    gradient = gradient + spread(won, start, padded.shape[1:3], stride)
  return gradient[:, padding : padding + x.shape[1], padding : padding + x.shape[2]]


def _pad(x: jax.Array, padding: int, value: float, axes: tuple[int, ...]) -> jax.Array:
  widths = [(padding, padding) if axis in axes else (0, 0) for axis in range(x.ndim)]
  return jnp.pad(x, widths, constant_values=value)


def _shift(padded: jax.Array, start: int, size: int, stride: int, axis: int) -> jax.Array:
  """Returns the element at `start` of each window along an axis."""
  count = (padded.shape[axis] - size) // stride + 1
  return jax.lax.slice_in_dim(padded, start, start + stride * (count - 1) + 1, stride, axis)


max_pool.defvjp(_forward, _backward)
