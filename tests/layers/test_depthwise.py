"""The depthwise convolution is flax's, on grids of one and of two axes, with strides and widths."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.slow import all_but
from vitx.layers.depthwise import DepthwiseConvolution
from vitx.ops.kernels import depthwise

# Grid, K, stride, how many times as wide.
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


def everything(module, params, x):
  """The output, and the gradients of a sum of sines of it."""

  def loss(params, x):
    out = module.apply({"params": params}, x)
    return jnp.sum(jnp.sin(out)), out

  return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, x)


@pytest.mark.parametrize("case", all_but(0, 4, 5, of=range(len(CASES))))
@pytest.mark.parametrize("use_bias", [True, False])
def test_equals_flax(case, use_bias):
  grid, size, stride, times = CASES[case]
  x = jax.random.normal(jax.random.key(0), (2, *grid, 6))
  ours = DepthwiseConvolution(size, stride, 6 * times, use_bias)
  theirs = nn.Conv(
    6 * times,
    (size,) * len(grid),
    stride,
    padding=size // 2,
    feature_group_count=6,
    use_bias=use_bias,
  )
  params = theirs.init(jax.random.key(1), x)["params"]
  jax.tree.map(np.testing.assert_array_equal, ours.init(jax.random.key(1), x)["params"], params)
  if use_bias:
    params["bias"] = jnp.arange(6.0 * times)
  found = (everything(module, params, x) for module in (ours, theirs))
  for a, b in zip(*map(jax.tree.leaves, found), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
  half = DepthwiseConvolution(size, stride, 6 * times, use_bias, dtype=jnp.bfloat16)
  assert half.apply({"params": params}, x).dtype == jnp.bfloat16


@pytest.mark.parametrize(("grid", "stride"), [((5, 4), 1), ((7, 6), 2), ((7,), 3)])
def test_accelerators_convolution_is_the_same(grid, stride):
  """What `grid_convolution` is elsewhere than on a CPU, run on this machine."""
  random = np.random.default_rng(0)
  x = jnp.asarray(random.normal(size=(2, *grid, 6)), jnp.float32)
  taps = jnp.asarray(random.normal(size=(*(3,) * len(grid), 6)), jnp.float32)
  shifted = depthwise.add_shifted(x, taps, stride)
  out, pull = jax.vjp(lambda *a: depthwise.convolve_groups(*a, stride), x, taps)
  np.testing.assert_allclose(shifted, out, rtol=1e-5, atol=1e-5)
  d_out = jnp.cos(out)
  found = depthwise.shifted_gradients(x, taps, d_out, stride)
  for a, b in zip(found, pull(d_out), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
