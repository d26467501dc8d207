"""A convolution with gradients of its own, which are fast on a CPU in loops too.

JAX's gradients are convolutions with the batch axis and the channel axis exchanged. XLA's CPU
compiler transposes their operands at the top level of a program, but not inside a loop
(micro-batches, several training steps in one program). In a loop it multiplies numbers one by one,
and ResNet-20 took ten times as long. The gradients of this module transpose their operands
themselves, so that every convolution has the layout (batch, rows, columns, channels).
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from vitx.ops.shapes import Array, Float

Pads = tuple[tuple[int, int], ...]

LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolve(
  images: Float[Array, "B ... C"],
  kernel: Float[Array, "... channels"],
  strides: Sequence[int],
  padding: str | Sequence[tuple[int, int]],
  **settings: Any,
) -> Float[Array, "B ... channels"]:
  """Convolves like `lax.conv_general_dilated`, as `nn.Conv(conv_general_dilated=...)` needs it.

  Args:
    images: The images, (B, height, width, C).
    kernel: The kernel, (rows, columns, C, channels).
    strides: The strides of the two axes.
    padding: The padding: "SAME", "VALID", or the numbers of zeros before and after each axis.
    **settings: Other arguments of `lax.conv_general_dilated`. With groups, dilation, a precision or
      another number of axes the convolution is JAX's own, gradients included.

  Returns:
    The result, (B, rows', columns', channels).
  """
  if images.ndim != 4 or not _is_plain(**settings):
    return lax.conv_general_dilated(images, kernel, strides, padding, **settings)
  if isinstance(padding, str):
    padding = lax.padtype_to_pads(images.shape[1:3], kernel.shape[:2], strides, padding)
  pads = tuple((int(low), int(high)) for low, high in padding)
  return _convolve(images, kernel, tuple(strides), pads)


def _is_plain(
  lhs_dilation=(), rhs_dilation=(), dimension_numbers=LAYOUT, feature_group_count=1, precision=None
) -> bool:
  dilation = {*(lhs_dilation or ()), *(rhs_dilation or ())}
  layout = lax.conv_dimension_numbers((1,) * 4, (1,) * 4, LAYOUT)
  is_usual = dimension_numbers in (LAYOUT, layout)
  return is_usual and dilation <= {1} and feature_group_count == 1 and precision is None


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve(x: jax.Array, kernel: jax.Array, strides: tuple[int, int], pads: Pads) -> jax.Array:
  return lax.conv_general_dilated(x, kernel, strides, pads, dimension_numbers=LAYOUT)


def _forward(x, kernel, strides, pads):
  return _convolve(x, kernel, strides, pads), (x, kernel)


def _backward(strides, pads, saved, g):
  x, kernel = saved
  to_kernel = _kernel_gradient_by_products if max(strides) > 1 else _kernel_gradient_by_convolution
  d_kernel = to_kernel(g, x, kernel, strides, pads)
  return _image_gradient(g, x, kernel, strides, pads), jnp.asarray(d_kernel, kernel.dtype)


def _image_gradient(g, x, kernel, strides, pads) -> jax.Array:
  """Returns the gradient of the images: the dilated `g` convolved with the flipped kernel."""
  padding = []
  for axis, (stride, (low, _)) in enumerate(zip(strides, pads, strict=True)):
    size, window = x.shape[1 + axis], kernel.shape[axis]
    spread = (g.shape[1 + axis] - 1) * stride + 1
    before = window - 1 - low
    padding.append((before, size + window - 1 - spread - before))
  flipped = kernel[::-1, ::-1].swapaxes(2, 3)
  return lax.conv_general_dilated(
    g, flipped, (1, 1), padding, lhs_dilation=strides, dimension_numbers=LAYOUT
  )


def _kernel_gradient_by_convolution(g, x, kernel, strides, pads) -> jax.Array:
  """Computes the gradient of the kernel by a convolution with the channels as batch axis."""
  padding = []
  for axis, (stride, (low, _)) in enumerate(zip(strides, pads, strict=True)):
    spread = (g.shape[1 + axis] - 1) * stride + 1
    padding.append((low, kernel.shape[axis] - 1 + spread - x.shape[1 + axis] - low))
  d_kernel = lax.conv_general_dilated(
    x.transpose(3, 1, 2, 0),
    g.transpose(1, 2, 0, 3),
    (1, 1),
    padding,
    rhs_dilation=strides,
    dimension_numbers=LAYOUT,
  )
  return d_kernel.transpose(1, 2, 0, 3)


def _kernel_gradient_by_products(g, x, kernel, strides, pads) -> jax.Array:
  """Computes the gradient of the kernel by matrix products, one for each row of the kernel.

  With strides above 1, this is up to twice as fast on a CPU as a convolution, whose kernel would be
  dilated.
  """
  rows, columns, channels, features = kernel.shape
  across = [(g.shape[1 + axis] - 1) * stride + 1 for axis, stride in enumerate(strides)]
  # Pads or cuts to the extent that the taps reach: `pad` takes negative widths.
  reach = [
    (low, size - 1 + spread - length - low, 0)
    for size, spread, length, (low, _) in zip(
      kernel.shape[:2], across, x.shape[1:3], pads, strict=True
    )
  ]
  x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *reach, (0, 0, 0)])

  def tap(i: int, j: int) -> jax.Array:
    inputs = x[:, i : i + across[0] : strides[0], j : j + across[1] : strides[1]]
    return inputs.reshape(-1, channels)

  flat = g.reshape(-1, features)
  grads = [jnp.concatenate([tap(i, j) for j in range(columns)], -1).T @ flat for i in range(rows)]
  return jnp.concatenate(grads).reshape(kernel.shape)


_convolve.defvjp(_forward, _backward)
