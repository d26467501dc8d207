"""The depthwise convolution equals Flax's on one and two axes, with several strides and widths."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.slow import all_but
from vitx.layers.depthwise import DepthwiseConvolution
from vitx.ops.kernels import depthwise

# Grid, kernel size K, stride, and output channels per input channel.
CASES = [
  ((5, 4), 3, 1, 1),
  ((7,), 5, 1, 1),
  ((2, 3), 7, 1, 1),
  ((4, 4), 1, 1, 1),
  ((5, 4), 3, 2, 1),
  ((4, 6), 3, 2, 2),
  ((7, 8), 5, 3, 1),
  ((3, 4), 3, 1, 3),
  ((9,), 3, 4, 1),
]


def everything(modules, key, x):
  """Returns initial parameters, and the gradients and outputs of modules with other parameters.

  The gradients are those of a sum of sines.
  """

  def loss(module, params, x):
    out = module.apply({"params": params}, x)
    return jnp.sum(jnp.sin(out)), out

  starts = [module.init(key, x)["params"] for module in modules]
  params = {name: p + 0.1 * jnp.sin(jnp.arange(p.shape[-1])) for name, p in starts[0].items()}
  find = jax.grad(loss, argnums=(1, 2), has_aux=True)
  return starts, [find(module, params, x) for module in modules]


@pytest.mark.parametrize("case", all_but(0, 4, 5, of=range(len(CASES))))
def test_the_convolution_equals_flax(case):
  grid, size, stride, times = CASES[case]
  use_bias = case % 3 != 1
  x = np.random.default_rng(0).normal(size=(2, *grid, 6)).astype(np.float32)
  ours = DepthwiseConvolution(size, stride, 6 * times, use_bias)
  theirs = nn.Conv(
    6 * times,
    (size,) * len(grid),
    stride,
    padding=size // 2,
    feature_group_count=6,
    use_bias=use_bias,
  )
  run = jax.jit(partial(everything, (ours, theirs)))
  starts, results = run(jax.random.key(1), x)
  assert ("bias" in starts[0]) == use_bias
  jax.tree.map(np.testing.assert_array_equal, *starts)
  for a, b in zip(*map(jax.tree.leaves, results), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
  half = ours.clone(dtype=jnp.bfloat16)
  assert jax.eval_shape(half.apply, {"params": starts[0]}, x).dtype == jnp.bfloat16


@pytest.mark.parametrize(("grid", "stride"), [((5, 4), 1), ((7, 6), 2), ((7,), 3)])
def test_the_convolution_of_accelerators_gives_equal_results(grid, stride):
  """The accelerators' program of `grid_convolution`, run on this machine, gives equal results."""
  random = np.random.default_rng(0)
  x = random.normal(size=(2, *grid, 6)).astype(np.float32)
  taps = random.normal(size=(*(3,) * len(grid), 6)).astype(np.float32)

  @jax.jit
  def run(x, taps):
    out, pull = jax.vjp(lambda *a: depthwise._convolve_groups(*a, stride), x, taps)
    d_out = jnp.cos(out)
    shifted = depthwise._shifted_gradients(x, taps, d_out, stride)
    return (depthwise._add_shifted(x, taps, stride), *shifted), (out, *pull(d_out))

  for a, b in zip(*run(x, taps), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_sums_of_half_precision_are_float32():
  """Only the result is rounded, once, and not the sum after each of the taps."""
  random = np.random.default_rng(0)
  x, taps = (jnp.asarray(random.normal(size=(*size, 6)), jnp.bfloat16) for size in ((2, 9), (9,)))

  @jax.jit
  def run(x, taps):
    out, pull = jax.vjp(depthwise.grid_convolution, x, taps)
    return out, pull(jnp.ones_like(out))[0]

  wide = run(x.astype(jnp.float32), taps.astype(jnp.float32))
  for a, b in zip(run(x, taps), wide, strict=True):
    assert a.dtype == jnp.bfloat16
    np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=2**-8)
