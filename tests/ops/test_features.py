"""Random features (orthogonal, unbiased, blind to masked tokens), and linear attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx import ops
from vitx.ops.kernels import features, linear


def random(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


draw = jax.jit(features.orthogonal_gaussian, static_argnums=(1, 2))


@functools.partial(jax.jit, static_argnames="stabilizer")
def key_features(k, w, **options):
  """Returns the features of keys, and the gradient of the sum of the features."""
  phi, pull = jax.vjp(lambda k: features.softmax_key_features(k, w, **options), k)
  return phi, pull(jnp.ones_like(phi))[0]


def test_blocks_are_orthogonal_and_lengths_gaussian():
  w = np.asarray(draw(jax.random.key(0), 110, 32))
  assert w.shape == (110, 32)
  for start in range(0, 110, 32):
    block = w[start : start + 32]
    product = block @ block.T
    np.testing.assert_allclose(product - np.diag(np.diag(product)), 0, atol=2e-5)
  # A squared length is chi-squared with 32 degrees of freedom: mean 32, variance 64.
  squares = (w**2).sum(1)
  assert abs(squares.mean() - 32) < 4 * (64 / 110) ** 0.5 and squares.std() > 4


def test_directions_are_uniform():
  many = jax.jit(jax.vmap(lambda key: draw(key, 3, 3)))
  w = np.asarray(many(jax.random.split(jax.random.key(1), 4000)))
  np.testing.assert_allclose(w.mean(0), 0, atol=4 / 4000**0.5)
  covariance = np.einsum("nif,nig->ifg", w, w) / 4000
  np.testing.assert_allclose(covariance, np.broadcast_to(np.eye(3), (3, 3, 3)), atol=0.12)


def test_performer_approaches_softmax_for_small_logits():
  q, k, v = (0.5 * random(1, 24, 1, 8, seed=i) for i in range(3))

  @jax.jit
  def attend(q, k, v, w):
    phi_q = features.softmax_query_features(q, w, eps=0.0)
    phi_k = features.softmax_key_features(k, w, eps=0.0)
    return ops.linear_attention(phi_q, phi_k, v, implementation="kernelized")[0]

  expected, _ = cases.masked(q, k, v)
  errors = [
    np.abs(attend(q, k, v, draw(jax.random.key(3), count, 8)) - expected).max()
    for count in (16, 256, 4096)
  ]
  assert errors[0] > 3 * errors[1] / 1.5 and errors[1] > 2 * errors[2]
  assert errors[2] < 0.02


@pytest.mark.parametrize("stabilizer", features.STABILIZERS)
def test_masked_keys_do_not_change_the_stabilizer(stabilizer):
  k, w = random(2, 6, 2, 4), random(9, 4, seed=1)
  mask = np.arange(6) < np.full((2, 1), 4)
  huge = np.where(mask[..., None, None], k, 1e3 * k)
  (a, _), (b, grad) = (key_features(x, w, mask=mask, stabilizer=stabilizer) for x in (k, huge))
  np.testing.assert_array_equal(a, b)
  np.testing.assert_array_equal(grad[:, 4:], 0)
  assert np.all(np.isfinite(grad))


def test_linear_attention_is_the_matrix_product(monkeypatch):
  arrays = [np.maximum(random(2, 13, 3, 5, seed=i), 0) for i in (0, 1)] + [random(2, 13, 3, 4)]
  arrays[0][:, 2] = 0  # a query without weight
  d_out = random(2, 13, 3, 4, seed=3)
  for causal, chunks in ((False, (128,)), (True, (1, 4, 5, 64))):
    weights = np.einsum("bnhf,bmhf->bhnm", *arrays[:2]) * (np.tri(13) if causal else 1)
    total = weights.sum(-1, keepdims=True)
    matrix = weights / np.where(total == 0, 1, total)
    exact = np.einsum("bhnm,bmhd->bnhd", matrix, arrays[2])

    def attend(*x, causal=causal, implementation="kernelized"):
      return ops.linear_attention(*x, causal=causal, implementation=implementation)[0]

    expected = cases.program(functools.partial(attend, implementation="masked"))(*arrays, d_out)
    np.testing.assert_allclose(expected[0], exact, atol=2e-6)
    for chunk in chunks:
      monkeypatch.setattr(linear, "CHUNK", chunk)
      results = cases.program(attend)(*arrays, d_out)
      assert all(np.isfinite(x).all() for x in results)
      cases.assert_close(results, expected, 2e-5)
      np.testing.assert_array_equal(results[0][:, 2], 0)


@pytest.mark.parametrize("causal", [False, True])
def test_local_attention_is_softmax_under_its_mask(causal):
  q, k, v = (random(2, 11, 2, 4, seed=i) for i in range(3))
  mask = cases.seen_keys(2, 11, 0.6)
  i = np.arange(11)
  near = np.abs(i[:, None] // 3 - i // 3) <= 1
  near = near & np.tri(11, dtype=bool) if causal else near

  seen = near & mask[:, None, None]

  @jax.jit
  def run(*x):
    options = {"key_mask": mask, "causal": causal}
    names = ("masked", "kernelized")
    return [ops.local_attention(*x, 3, **options, implementation=name) for name in names]

  (out, matrix), (fast, _) = run(q, k, v)
  np.testing.assert_array_equal(np.asarray(matrix) > 0, np.broadcast_to(seen, matrix.shape))
  for output in (out, fast):
    np.testing.assert_allclose(output, cases.masked(q, k, v, seen)[0], atol=2e-6)


def test_causal_features_depend_on_no_later_token():
  """No stabilizer is used: a maximum over all keys lets later tokens change earlier outputs."""
  w = random(40, 64, seed=1) * 2
  for size in (1, 1000):
    k = size * random(2, 6, 2, 64)
    phi, grad = key_features(k, w, stabilizer="none")
    k[:, 4:] *= 9
    other, _ = key_features(k, w, stabilizer="none")
    np.testing.assert_array_equal(phi[:, :4], other[:, :4])
    assert np.isfinite(phi).all() and np.isfinite(grad).all()
