"""Convolutions have JAX's values and gradients, and each of them has the layout of images."""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from vitx.layers.convolution import Conv
from vitx.ops.kernels.convolution import LAYOUT, convolve

PADDINGS = ("SAME", "VALID", ((1, 1), (1, 1)), ((0, 2), (2, 1)))


def draw(size: int, kernel: int, dtype=jnp.float32):
  random = np.random.default_rng(size * 10 + kernel)
  x, w = random.normal(size=(2, size, size + 1, 3)), random.normal(size=(kernel, kernel, 3, 5))
  return x.astype(dtype), w.astype(dtype)


@functools.partial(jax.jit, static_argnums=0)
def gradients(function, x, w):
  out, pull = jax.vjp(function, x, w)
  return out, *pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))


def test_values_and_gradients_equal_those_of_jax():
  """Together, the cases have every padding, and every stride with every image and kernel size."""
  for i, j, stride in itertools.product(range(2), range(3), (1, 2, 3)):
    padding, (x, w) = PADDINGS[(i + j + stride) % 4], draw((7, 8)[i], (1, 3, 4)[j])
    expected = gradients(
      functools.partial(
        lax.conv_general_dilated,
        window_strides=(stride, stride),
        padding=padding,
        dimension_numbers=LAYOUT,
      ),
      x,
      w,
    )
    ours = gradients(lambda x, w, s=stride, p=padding: convolve(x, w, (s, s), p), x, w)
    for a, b in zip(ours, expected, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5, err_msg=str((stride, padding)))


def test_half_precision_keeps_its_type():
  x, w = draw(8, 3, jnp.bfloat16)
  half = gradients(lambda x, w: convolve(x, w, (2, 2), "SAME"), x, w)
  wide = gradients(lambda x, w: convolve(x, w, (2, 2), "SAME"), *draw(8, 3))
  for a, b in zip(half, wide, strict=True):
    assert a.dtype == jnp.bfloat16
    np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=0.05, atol=0.3)


@pytest.mark.parametrize("stride, convolutions", [(1, 3), (2, 2)])
def test_every_convolution_of_a_gradient_has_the_layout_of_images(stride, convolutions):
  """In another layout, the CPU would multiply numbers one by one inside a loop.

  With strides, the gradient by the kernel is computed by matrix products.
  """
  x, w = draw(8, 3)
  jaxpr = jax.make_jaxpr(
    lambda x, w: gradients(lambda *a: convolve(*a, (stride, stride), "SAME"), x, w)
  )(x, w)
  layouts = [
    equation.params["dimension_numbers"]
    for equation in jax.tree.leaves(_equations(jaxpr.jaxpr), is_leaf=lambda e: hasattr(e, "params"))
    if equation.primitive.name == "conv_general_dilated"
  ]
  usual = lax.conv_dimension_numbers((1,) * 4, (1,) * 4, LAYOUT)
  assert len(layouts) == convolutions and set(layouts) == {usual}


def _equations(jaxpr) -> list:
  equations = []
  for equation in jaxpr.eqns:
    equations.append(equation)
    for value in equation.params.values():
      inner = getattr(value, "jaxpr", None)
      if inner is not None:
        equations += _equations(getattr(inner, "jaxpr", inner))
  return equations


@pytest.mark.parametrize(
  "settings",
  [{}, {"strides": 2, "padding": 1}, {"feature_group_count": 2}, {"kernel_dilation": 2}],
)
def test_the_layer_equals_that_of_flax(settings):
  x = np.random.default_rng(0).normal(size=(2, 8, 8, 4)).astype(np.float32)
  theirs, ours = (make(6, (3, 3), **settings) for make in (nn.Conv, Conv))
  params = jax.jit(theirs.init)(jax.random.key(0), x)
  expected, results = jax.jit(
    lambda p: [
      jax.value_and_grad(lambda p, m=module: jnp.sum(jnp.sin(m.apply(p, x))))(p)
      for module in (theirs, ours)
    ]
  )(params)
  for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
