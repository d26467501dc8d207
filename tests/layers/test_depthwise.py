"""The depthwise convolution is flax's, on grids of one and of two axes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.slow import all_but
from vitx.layers.depthwise import DepthwiseConvolution


@pytest.mark.parametrize(
  ("grid", "size"), all_but((5, 4), (7,), of=[((5, 4), 3), ((7,), 5), ((2, 3), 7), ((4, 4), 1)])
)
def test_equals_flax(grid, size):
  x = jax.random.normal(jax.random.key(0), (2, *grid, 6))
  ours = DepthwiseConvolution(size)
  theirs = nn.Conv(6, (size,) * len(grid), feature_group_count=6)
  params = theirs.init(jax.random.key(1), x)["params"]
  made = ours.init(jax.random.key(1), x)["params"]
  assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, params)
  params["bias"] = jnp.arange(6.0)

  def everything(module):
    def loss(params, x):
      out = module.apply({"params": params}, x)
      return jnp.sum(jnp.sin(out)), out

    return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, x)

  for a, b in zip(*map(jax.tree.leaves, map(everything, (ours, theirs))), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
  half = DepthwiseConvolution(size, dtype=jnp.bfloat16).apply({"params": params}, x)
  assert half.dtype == jnp.bfloat16
