"""The exact GELU beside its definition in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from vitx.layers.mlp import gelu

X = np.linspace(-12, 12, 4001)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-6), (jnp.bfloat16, 1e-2)])
def test_values_and_slopes_equal_the_definition(dtype, tolerance):
  x = jnp.asarray(X, dtype)
  exact = np.asarray(x, np.float64)
  value, pull = jax.vjp(gelu, x)
  (slope,) = pull(jnp.ones_like(x))
  assert value.dtype == slope.dtype == dtype
  expected = exact * norm.cdf(exact), norm.cdf(exact) + exact * norm.pdf(exact)
  for array, reference in zip((value, slope), expected, strict=True):
    np.testing.assert_allclose(np.asarray(array, np.float64), reference, rtol=tolerance, atol=2e-6)


def test_the_backward_pass_is_one_product():
  _, pull = jax.vjp(gelu, jnp.asarray(X, jnp.float32))
  names = [equation.primitive.name for equation in jax.make_jaxpr(pull)(jnp.ones(4001)).eqns]
  assert not {"erf", "erfc", "exp"} & set(names)
