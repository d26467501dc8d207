"""Softmax attention: both implementations agree, and a query that sees nothing gets nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.slow import all_but
from vitx.ops import attention
from vitx.ops.kernels.softmax import kernelized_attention, masked_attention, masked_softmax


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
@pytest.mark.parametrize("masked", all_but(True, of=[False, True]))
def test_implementations_agree(dtype, tolerance, masked):
  q, k, v = qkv(dtype=dtype)
  key_mask = jax.random.bernoulli(jax.random.key(5), 0.5, (2, 5)) if masked else None
  if masked:
    key_mask = key_mask.at[1].set(False)  # queries that may attend nothing

  def loss(name, *args):
    out, _ = attention(*args, key_mask=key_mask, implementation=name)
    return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

  results = [
    jax.value_and_grad(lambda *a, f=f: loss(f, *a), argnums=(0, 1, 2), has_aux=True)(q, k, v)
    for f in ("masked", "kernelized")
  ]
  for a, b in zip(*(jax.tree.leaves(r) for r in results), strict=True):
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    np.testing.assert_allclose(a, b, atol=tolerance * max(1, np.abs(a).max()))


def test_an_empty_row_is_zero_with_zero_gradient():
  q, k, v = qkv()
  mask = jnp.ones((2, 1, 7, 5), bool).at[:, :, 3].set(False)
  row = lambda *x: masked_attention(*x, mask=mask)[0][:, 3]  # noqa: E731
  np.testing.assert_array_equal(row(q, k, v), 0)
  for grad in jax.grad(lambda *a: row(*a).sum(), argnums=(0, 1, 2))(q, k, v):
    np.testing.assert_array_equal(grad, 0)


@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
def test_unseen_keys_have_exactly_zero_gradient(implementation):
  q, k, v = qkv()
  seen = jnp.ones((2, 5), bool).at[..., 4].set(False)

  def total(k, v):
    return jnp.sum(jnp.cos(attention(q, k, v, key_mask=seen, implementation=implementation)[0]))

  for grad in jax.grad(total, argnums=(0, 1))(k, v):
    np.testing.assert_array_equal(grad[:, 4], 0)
    assert np.all(np.abs(grad[:, :4]).sum((1, 2, 3)) > 0)


def test_lengths_are_a_mask_of_the_first_keys():
  q, k, v = qkv()
  lengths = jnp.array([3, 0])
  found = kernelized_attention(q, k, v, key_lengths=lengths)
  expected = kernelized_attention(q, k, v, key_mask=jnp.arange(5) < lengths[:, None])
  np.testing.assert_array_equal(found, expected)
  np.testing.assert_array_equal(found[1], 0)


def test_softmax_is_stable_and_float32():
  logits = jnp.array([[1e4, 1e4 - 1, -1e4]], jnp.float32)
  mask = jnp.array([[True, True, False]])
  np.testing.assert_allclose(masked_softmax(logits, mask), [[0.731059, 0.268941, 0]], atol=1e-5)
  assert masked_softmax(logits.astype(jnp.bfloat16)).dtype == jnp.float32
