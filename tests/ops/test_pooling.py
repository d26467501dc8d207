"""The maxima of windows, and their gradients, are those of XLA, ties included."""

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


@pytest.mark.parametrize(
  ("case", "dtype"),
  [*((case, jnp.float32) for case in CASES), (CASES[1], jnp.bfloat16), (CASES[4], jnp.bfloat16)],
)
def test_pooling_equals_xla(case, dtype):
  shape, *window = case
  random = np.random.default_rng(0)
  x = random.integers(-2, 3, (2, *shape, 3)).astype(dtype)  # few values, so that most windows tie

  @jax.jit
  def run(x, d_out):
    pools = [lambda x, p=p: p(x, *window) for p in (pooling.max_pool, pooling._pool_windows)]
    return [(out, pull(d_out)[0]) for out, pull in (jax.vjp(pool, x) for pool in pools)]

  size = jax.eval_shape(lambda x: pooling.max_pool(x, *window), x).shape
  ours, theirs = run(x, random.integers(-8, 9, size).astype(dtype))  # sums of integers are exact
  for a, b in zip(ours, theirs, strict=True):
    np.testing.assert_array_equal(a, b)
    assert a.dtype == dtype


def test_pooling_works_on_other_platforms_and_under_vmap():
  x = np.random.default_rng(0).normal(size=(2, 3, 6, 6, 4)).astype(np.float32)
  pool = jax.jit(lambda x: pooling.max_pool(x, 3, 2, 1))
  output, expected = jax.jit(
    lambda x: (jax.vmap(pool)(x), pooling._pool_windows(x.reshape(6, 6, 6, 4), 3, 2, 1))
  )(x)
  np.testing.assert_array_equal(np.asarray(output).reshape(expected.shape), expected)
  assert "reduce_window" in pool.trace(x[0]).lower(lowering_platforms=("cuda",)).as_text()
  assert "reduce_window" not in pool.lower(x[0]).as_text()
