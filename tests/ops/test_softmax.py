"""Softmax attention: both implementations equal NumPy's; a query without keys gets zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx.ops import attention
from vitx.ops.kernels.softmax import masked_attention, masked_softmax


def arrays(n=7, m=5, dtype=np.float32):
  """Returns q of n tokens, k and v of m tokens, and a cotangent of the output."""
  q, _, _, d_out = cases.inputs(2, n, 3, 4, 0, dtype)
  _, k, v, _ = cases.inputs(2, m, 3, 4, 1, dtype)
  return q, k, v, d_out


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
def test_both_implementations_equal_the_definition(implementation, masked):
  key_mask = np.array([[True, False, True, True, False], [False] * 5]) if masked else None
  mask = None if key_mask is None else key_mask[:, None, None]

  def attend(q, k, v):
    return attention(q, k, v, key_mask=key_mask, implementation=implementation)

  results = cases.check(attend, arrays(), mask=mask, tolerance=2e-6)
  if masked:
    for array in results:
      np.testing.assert_array_equal(array[1], 0)  # queries that may attend nothing
    for grad in results[2:]:
      np.testing.assert_array_equal(np.abs(grad[0]).sum((1, 2)) > 0, key_mask[0])
  half = arrays(dtype=jnp.bfloat16)
  cases.check(attend, half, mask=mask, tolerance=2e-2)


def test_the_matrix_equals_the_definition():
  q, k, v, d_out = arrays()
  mask = np.ones((2, 1, 7, 5), bool)
  mask[:, :, 3] = False
  out, matrix = jax.jit(masked_attention)(q, k, v, mask=mask)
  logits = np.einsum("bnhd,bmhd->bhnm", np.float64(q), np.float64(k)) / 2
  weights = np.exp(logits) * mask
  weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-9)
  np.testing.assert_allclose(matrix, weights, rtol=2e-5, atol=1e-7)
  np.testing.assert_allclose(out, np.einsum("bhnm,bmhd->bnhd", weights, v), rtol=2e-5, atol=1e-6)
  d_out[:, np.arange(7) != 3] = 0
  for array in cases.program(lambda *x: masked_attention(*x, mask=mask)[0])(q, k, v, d_out)[1:]:
    np.testing.assert_array_equal(array, 0)


def test_softmax_is_stable_and_float32():
  logits = np.array([[1e4, 1e4 - 1, -1e4]], np.float32)
  softmax = jax.jit(masked_softmax)
  softened = softmax(logits, np.array([[True, True, False]]))
  np.testing.assert_allclose(softened, [[0.731059, 0.268941, 0]], atol=1e-5)
  assert jax.eval_shape(softmax, logits.astype(jnp.bfloat16)).dtype == jnp.float32
