"""Softmax attention: both implementations agree, and a query that sees nothing gets nothing."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.ops.kernels.softmax import fused_attention, masked_attention, masked_softmax


def qkv(n=7, m=5, seed=0, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(seed), 3)
  shapes = ((2, n, 3, 4), (2, m, 3, 4), (2, m, 3, 4))
  return [jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes, strict=True)]


def test_against_numpy():
  q, k, v = qkv()
  logits = np.einsum("bnhd,bmhd->bhnm", np.float64(q), np.float64(k)) / 2
  weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  expected = np.einsum("bhnm,bmhd->bnhd", weights, np.float64(v))
  out, matrix = masked_attention(q, k, v)
  np.testing.assert_allclose(out, expected, rtol=2e-5, atol=1e-6)
  np.testing.assert_allclose(matrix, weights, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-6), (jnp.bfloat16, 2e-2)])
@pytest.mark.parametrize("masked", [False, True])
def test_implementations_agree(dtype, tolerance, masked):
  q, k, v = qkv(dtype=dtype)
  mask = jax.random.bernoulli(jax.random.key(5), 0.5, (2, 1, 7, 5)) if masked else None
  if masked:
    mask = mask.at[0, 0, 2].set(False)  # a query that may attend nothing

  def loss(function, *args):
    out = function(*args, mask=mask)
    out = out[0] if isinstance(out, tuple) else out
    return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

  def result(function):
    return jax.value_and_grad(partial(loss, function), argnums=(0, 1, 2), has_aux=True)(q, k, v)

  with jax.numpy_dtype_promotion("standard"):  # JAX's own function promotes implicitly
    fused = result(fused_attention)
  results = result(masked_attention), fused
  for a, b in zip(*(jax.tree.leaves(r) for r in results), strict=True):
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    np.testing.assert_allclose(a, b, atol=tolerance * max(1, np.abs(a).max()))


@pytest.mark.parametrize("function", [masked_attention, fused_attention])
def test_an_empty_row_is_zero_with_zero_gradient(function):
  q, k, v = qkv()
  mask = jnp.ones((2, 1, 7, 5), bool).at[:, :, 3].set(False)

  def row(q, k, v):
    out = function(q, k, v, mask=mask)
    return (out[0] if isinstance(out, tuple) else out)[:, 3]

  np.testing.assert_array_equal(row(q, k, v), 0)
  for grad in jax.grad(lambda *a: row(*a).sum(), argnums=(0, 1, 2))(q, k, v):
    np.testing.assert_array_equal(grad, 0)


def test_unseen_keys_have_exactly_zero_gradient():
  q, k, v = qkv()
  mask = jnp.ones((2, 1, 7, 5), bool).at[..., 4].set(False)
  for function in (masked_attention, fused_attention):

    def total(k, v, function=function):
      out = function(q, k, v, mask=mask)
      return jnp.sum(jnp.cos(out[0] if isinstance(out, tuple) else out))

    for grad in jax.grad(total, argnums=(0, 1))(k, v):
      np.testing.assert_array_equal(grad[:, 4], 0)
      assert np.all(np.abs(grad[:, :4]).sum((1, 2, 3)) > 0)


def test_softmax_is_stable_and_float32():
  logits = jnp.array([[1e4, 1e4 - 1, -1e4]], jnp.float32)
  mask = jnp.array([[True, True, False]])
  np.testing.assert_allclose(masked_softmax(logits, mask), [[0.731059, 0.268941, 0]], atol=1e-5)
  assert masked_softmax(logits.astype(jnp.bfloat16)).dtype == jnp.float32
