"""The largest values of windows, and whose gradient it is, are XLA's, ties included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.ops.kernels import pooling

# Rows and columns, K, stride, padding.
CASES = [
  ((8, 8), 3, 2, 1),
  ((7, 10), 3, 2, 1),
  ((9, 6), 2, 2, 0),
  ((6, 6), 3, 1, 1),
  ((11, 8), 5, 3, 2),
  ((4, 4), 3, 4, 1),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_equals_xla(case, dtype):
  shape, *window = case
  random = np.random.default_rng(0)
  x = jnp.asarray(random.integers(-2, 3, (2, *shape, 3)), dtype)  # of few values: most windows tie
  theirs, pull = jax.vjp(lambda x: pooling.pool_windows(x, *window), x)
  ours = jax.jit(lambda x: pooling.max_pool(x, *window))(x)
  np.testing.assert_array_equal(ours, theirs)
  assert ours.dtype == dtype
  d_out = jnp.asarray(random.integers(-8, 9, theirs.shape), dtype)  # whose sums are exact

  @jax.jit
  def gradient(x):
    return jax.vjp(lambda x: pooling.max_pool(x, *window), x)[1](d_out)[0]

  np.testing.assert_array_equal(gradient(x), pull(d_out)[0])


def test_of_elsewhere_and_under_vmap():
  x = jax.random.normal(jax.random.key(0), (2, 3, 6, 6, 4))
  pool = jax.jit(lambda x: pooling.max_pool(x, 3, 2, 1))
  found = jax.vmap(pool)(x)
  np.testing.assert_array_equal(found[1], pooling.pool_windows(x[1], 3, 2, 1))
  assert "reduce_window" in pool.trace(x[0]).lower(lowering_platforms=("cuda",)).as_text()
  assert "reduce_window" not in pool.lower(x[0]).as_text()
