"""FLOPs counted over the jaxpr, against counts by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from vitx.analysis import cost
from vitx.ops.kernels.convolution import convolve


def shape(*dims):
  return jax.ShapeDtypeStruct(dims, jnp.float32)


def test_a_matrix_product_counts_its_multiply_adds():
  assert cost.flops(lambda a, b: a @ b, shape(3, 4), shape(4, 5)) == 2 * 3 * 4 * 5
  attention = lambda q, k: jnp.einsum("bnhd,bmhd->bhnm", q, k)  # noqa: E731
  assert cost.flops(attention, shape(2, 7, 3, 4), shape(2, 5, 3, 4)) == 2 * 2 * 3 * 7 * 5 * 4


def test_a_grouped_convolution_counts_less():
  def conv(x, w, groups):
    return jax.lax.conv_general_dilated(
      x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )

  x = shape(2, 8, 8, 6)
  assert cost.flops(lambda x, w: conv(x, w, 1), x, shape(3, 3, 6, 10)) == 2 * 2 * 64 * 10 * 9 * 6
  assert cost.flops(lambda x, w: conv(x, w, 6), x, shape(3, 3, 1, 6)) == 2 * 2 * 64 * 6 * 9


def embed_patches(w, x):
  return convolve(x, w, (4, 4), "VALID").sum()


def test_gradients_of_patches_count_as_the_patches_do():
  """Each gradient of a strided convolution costs as many FLOPs as its forward pass.

  The gradient by the images multiplies zeros, and those products do not count; nor does a
  gradient that nothing reads.
  """
  x, w = shape(2, 8, 12, 3), shape(4, 4, 3, 10)

  def steps(w, x):
    def step(w, _):
      value, gradient = jax.value_and_grad(embed_patches)(w, x)
      return w - gradient, (value, jnp.tanh(x) @ x.swapaxes(2, 3))

    w, (values, _) = jax.lax.scan(step, w, None, length=5)
    return w, values

  forward = cost.flops(embed_patches, w, x)
  assert forward == 2 * 2 * (2 * 3) * 10 * (4 * 4 * 3)
  assert cost.flops(jax.value_and_grad(embed_patches, argnums=(0, 1)), w, x) == 3 * forward
  assert cost.flops(jax.value_and_grad(embed_patches), w, x) == 2 * forward
  assert cost.flops(jax.jit(steps), w, x) == 5 * 2 * forward


def test_loops_count_as_often_as_they_run():
  def scanned(x, w):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=7)[0]

  assert cost.flops(scanned, shape(3, 4), shape(4, 4)) == 7 * 2 * 3 * 4 * 4
  forward_and_back = jax.grad(lambda x, w: scanned(x, w).sum(), argnums=(0, 1))
  assert cost.flops(forward_and_back, shape(3, 4), shape(4, 4)) == 3 * 7 * 2 * 3 * 4 * 4


def test_a_kernel_counts_all_its_programs():
  def multiply(x_ref, w_ref, out_ref):
    out_ref[...] = x_ref[...] @ w_ref[...]

  rows, whole = pl.BlockSpec((8, 4), lambda i: (i, 0)), pl.BlockSpec((4, 4), lambda i: (0, 0))
  kernel = pl.pallas_call(multiply, shape(24, 4), grid=(3,), in_specs=[rows, whole], out_specs=rows)
  assert cost.flops(kernel, shape(24, 4), shape(4, 4)) == 2 * 24 * 4 * 4


def test_nested_functions_count_and_so_does_the_dearer_branch():
  inner = jax.jit(lambda a, b: a @ b)

  def branch(flag, a, b):
    return jax.lax.cond(flag, lambda: inner(a, b) @ b, lambda: a @ b)

  assert cost.flops(branch, True, shape(3, 4), shape(4, 4)) == 2 * 2 * 3 * 4 * 4
  assert cost.flops(jax.checkpoint(inner), shape(3, 4), shape(4, 4)) == 2 * 3 * 4 * 4


def test_a_fourier_transform_counts_by_its_length():
  complex_flops = 3 * 5 * (8 * 16) * 7  # three transforms of 128 = 2^7 points
  assert cost.flops(lambda x: jnp.fft.fft2(x), shape(3, 8, 16)) == complex_flops
  assert cost.flops(lambda x: jnp.fft.rfft2(x), shape(3, 8, 16)) == complex_flops // 2
  back = lambda x: jnp.fft.irfft(x, 16)  # noqa: E731
  spectrum = jax.ShapeDtypeStruct((3, 9), jnp.complex64)
  assert cost.flops(back, spectrum) == 3 * 5 * 16 * 4 // 2
  there_and_back = jax.value_and_grad(lambda x: jnp.fft.fft2(x).real.sum())
  assert cost.flops(there_and_back, shape(3, 8, 16)) == 2 * complex_flops


def test_custom_derivatives_count_their_own_products():
  @jax.custom_vjp
  def product(a, b):
    return a @ b

  def forward(a, b):
    return product(a, b), (a, b)

  def backward(saved, g):  # recomputes the product, as memory-saving kernels do
    a, b = saved
    return (g + a @ b) @ b.T, a.T @ g

  product.defvjp(forward, backward)
  once = 2 * 3 * 4 * 5
  assert cost.flops(product, shape(3, 4), shape(4, 5)) == once
  grad = jax.value_and_grad(lambda a, b: product(a, b).sum(), argnums=(0, 1))
  assert cost.flops(grad, shape(3, 4), shape(4, 5)) == 4 * once


def test_elementwise_work_counts_on_request():
  def count(function, *args):
    return cost.flops(function, *args, elementwise=True)

  x = shape(3, 4)
  assert count(lambda x: jnp.exp(x) * 2 + x, x) == 3 * 12
  assert count(lambda x: x @ x.T + 1, x) == 2 * 3 * 3 * 4 + 9
  assert count(lambda x: x.sum(axis=1), x) == 12
  # Maximum, difference, exponential, sum, quotient; jax compares each row's maximum with -inf.
  assert count(jax.nn.softmax, x) == 5 * 12 + 3
  assert count(lambda x: 0.5 * x * (1 + jax.lax.erf(x / 1.5)), x) == 5 * 12
  looped = lambda x: jax.lax.fori_loop(0, 7, lambda i, c: jnp.tanh(c) @ x, x)  # noqa: E731
  assert count(looped, shape(4, 4)) == 7 * (16 + 2 * 64)
  assert count(lambda x: jax.numpy.zeros(5).at[jnp.arange(3)].add(x), shape(3)) == 3
  pool = lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (2, 2), (1, 1), "VALID")  # noqa: E731
  assert count(pool, x) == 2 * 3 * 4


def test_moves_and_integers_never_count():
  move = lambda x: jnp.where(x > 0, x, 0.0).T.reshape(-1)[::2].astype(jnp.bfloat16)  # noqa: E731
  assert cost.flops(move, shape(3, 4), elementwise=True) == 0
  assert cost.flops(lambda: jnp.arange(5) * 3 + 1, elementwise=True) == 0
  assert cost.flops(jax.random.bits, jax.random.key(0), elementwise=True) == 0


def test_bytes_of_trees_and_programs_are_counted():
  tree = {"a": np.zeros((3, 4), np.float32), "b": (np.zeros(2, np.int8),)}
  assert cost.tree_bytes(tree) == 50
  compiled = jax.jit(lambda x: x + 1).lower(shape(1000)).compile()
  assert cost.compiled_bytes(compiled) >= 8000
