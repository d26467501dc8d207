"""A depthwise convolution over a grid, which a CPU computes as a sum of shifted grids.

On a CPU, XLA's grouped convolution takes six times as long forward and backward, and longer still
in a loop, such as one over training steps. The sum has a gradient of its own, because the automatic
gradient would keep a copy of the grid for each tap (weight of the filter). Other platforms use
XLA's convolution, which comes from the platform's library.
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.kernels.shifts import spread
from vitx.ops.shapes import Array, Float


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def grid_convolution(
  x: Float[Array, "B *grid C"], taps: Float[Array, "*window C"], stride: int = 1
) -> Float[Array, "B *out C"]:
  """Convolves each channel with its own taps, with zeros beyond the ends.

  Args:
    x: The grid, (B, g, ..., g', C).
    taps: The taps, (K, ..., K, C), K odd; output n is the sum over i of
      taps[i] x[s n + i - K // 2].
    stride: The stride s along every axis.

  Returns:
    The result, (B, ceil(g / s), ..., ceil(g' / s), C), in the dtype of `x`.
  """
  return jax.lax.platform_dependent(
    x,
    taps,
    cpu=partial(_add_shifted, stride=stride),
    default=partial(_convolve_groups, stride=stride),
  )


def _convolve_groups(x: jax.Array, taps: jax.Array, stride: int) -> jax.Array:
  """Computes `grid_convolution` by XLA's grouped convolution."""
  reach = taps.shape[0] // 2
  letters = "xyzw"[: x.ndim - 2]
  return jax.lax.conv_general_dilated(
    x,
    taps[..., None, :],
    (stride,) * len(letters),
    [(reach, reach)] * len(letters),
    dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
    feature_group_count=x.shape[-1],
  )


def _add_shifted(x: jax.Array, taps: jax.Array, stride: int) -> jax.Array:
  """Computes `grid_convolution` as a sum over the taps, in float32."""
  # A sum in half precision would be rounded after each tap, to a percent with a side of 9.
  padded, wide = _pad(x, taps.shape[0]), taps.astype(jnp.float32)
  extents = [-(-g // stride) for g in x.shape[1:-1]]
  total = jnp.zeros((x.shape[0], *extents, x.shape[-1]), jnp.float32)
  for tap in itertools.product(*map(range, taps.shape[:-1])):
    windows = (
      slice(i, i + stride * (n - 1) + 1, stride) for i, n in zip(tap, extents, strict=True)
    )
    total = total + padded[(slice(None), *windows)].astype(jnp.float32) * wide[tap]
  return total.astype(x.dtype)


def _pad(x: jax.Array, size: int) -> jax.Array:
  reach = size // 2
  return jnp.pad(x, [(0, 0), *[(reach, reach)] * (x.ndim - 2), (0, 0)])


def _forward(x, taps, stride):
  return grid_convolution(x, taps, stride), (x, taps)


def _backward(stride, saved, d_out):
  return jax.lax.platform_dependent(
    *saved,
    d_out,
    cpu=partial(_shifted_gradients, stride=stride),
    default=lambda x, taps, d: jax.vjp(partial(_convolve_groups, stride=stride), x, taps)[1](d),
  )


def _shifted_gradients(x, taps, d_out, stride: int) -> tuple[jax.Array, jax.Array]:
  """Returns the gradients of `_add_shifted` with respect to the grid and to the taps."""
  axes = tuple(range(x.ndim - 1))
  padded = _pad(x, taps.shape[0])
  d_out = spread(d_out, (0,) * (x.ndim - 2), x.shape[1:-1], stride)

  def one(tap: jax.Array) -> jax.Array:  # one tap at a time, or all products would be in memory
    start = (0, *tap, 0)
    shifted = jax.lax.dynamic_slice(padded, start, x.shape)
    return jnp.sum(shifted.astype(jnp.float32) * d_out.astype(jnp.float32), axis=axes)

  numbers = np.stack(np.unravel_index(np.arange(taps[..., 0].size), taps.shape[:-1]), axis=1)
  d_taps = jax.lax.map(one, jnp.asarray(numbers, jnp.int32)).reshape(taps.shape)
  return _add_shifted(d_out, jnp.flip(taps, axes[:-1]), 1), d_taps.astype(taps.dtype)


grid_convolution.defvjp(_forward, _backward)
