"""Random features: orthogonal, unbiased, indifferent to masked tokens; linear attention by them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.slow import all_but
from vitx.ops.kernels import features, linear, local_window
from vitx.ops.kernels.softmax import masked_attention


def random(*shape, seed=0):
  return jax.random.normal(jax.random.key(seed), shape)


def test_blocks_are_orthogonal_and_lengths_gaussian():
  w = np.asarray(features.orthogonal_gaussian(jax.random.key(0), 110, 32))
  assert w.shape == (110, 32)
  for start in range(0, 110, 32):
    block = w[start : start + 32]
    product = block @ block.T
    np.testing.assert_allclose(product - np.diag(np.diag(product)), 0, atol=2e-5)
  # A squared length is chi-squared with 32 degrees of freedom: mean 32, variance 64.
  squares = (w**2).sum(1)
  assert abs(squares.mean() - 32) < 4 * (64 / 110) ** 0.5 and squares.std() > 4


def test_directions_are_uniform():
  draw = jax.vmap(lambda key: features.orthogonal_gaussian(key, 3, 3))
  w = np.asarray(draw(jax.random.split(jax.random.key(1), 4000)))
  np.testing.assert_allclose(w.mean(0), 0, atol=4 / 4000**0.5)
  covariance = np.einsum("nif,nig->ifg", w, w) / 4000
  np.testing.assert_allclose(covariance, np.broadcast_to(np.eye(3), (3, 3, 3)), atol=0.12)


@pytest.mark.parametrize(("dim", "count"), [(32, 110), (64, 266), (1, 1)])
def test_default_count(dim, count):
  assert features.default_count(dim) == count


@pytest.mark.slow
def test_performer_approaches_softmax_for_small_logits():
  q, k, v = (0.5 * random(1, 24, 1, 8, seed=i) for i in range(3))
  expected, _ = masked_attention(q, k, v)
  errors = []
  for count in (16, 256, 4096):
    w = features.orthogonal_gaussian(jax.random.key(3), count, 8)
    phi_q = features.softmax_query_features(q, w, eps=0.0)
    phi_k = features.softmax_key_features(k, w, eps=0.0)
    out = linear.kernelized_linear_attention(phi_q, phi_k, v)
    errors.append(float(jnp.abs(out - expected).max()))
  assert errors[0] > 3 * errors[1] / 1.5 and errors[1] > 2 * errors[2]
  assert errors[2] < 0.02


def test_masked_keys_have_no_feature_and_no_part_in_the_stabilizer():
  k, w = random(2, 6, 2, 4), random(9, 4, seed=1)
  mask = jnp.ones((2, 6), bool).at[:, 4:].set(False)
  huge = k.at[:, 4:].multiply(1e3)
  for stabilizer in features.STABILIZERS:
    a, b = (
      features.softmax_key_features(x, w, mask=mask, stabilizer=stabilizer) for x in (k, huge)
    )
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a[:, 4:], 0)
    grad = jax.grad(
      lambda x, s=stabilizer: features.softmax_key_features(x, w, mask=mask, stabilizer=s).sum()
    )(huge)
    np.testing.assert_array_equal(grad[:, 4:], 0)
    assert np.all(np.isfinite(grad))


@pytest.mark.parametrize("chunk", all_but(4, of=(1, 4, 5, 64)))
@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_is_the_matrix_product(causal, chunk):
  q, k = (jax.nn.relu(random(2, 13, 3, 5, seed=i)) for i in (0, 1))
  v = random(2, 13, 3, 4, seed=2)
  q = q.at[:, 2].set(0)  # a query without weight

  def run(function, *args):
    out = function(*args)
    return jnp.sum(jnp.sin(out[0] if isinstance(out, tuple) else out)), out

  a = lambda *x: linear.masked_linear_attention(*x, causal=causal)[0]  # noqa: E731
  b = lambda *x: linear.kernelized_linear_attention(*x, causal=causal, chunk=chunk)  # noqa: E731
  results = [
    jax.value_and_grad(lambda *x, f=f: run(f, *x), argnums=(0, 1, 2), has_aux=True)(q, k, v)
    for f in (a, b)
  ]
  for x, y in zip(*(jax.tree.leaves(r) for r in results), strict=True):
    assert np.all(np.isfinite(x))
    np.testing.assert_allclose(x, y, atol=2e-5 * max(1, np.abs(x).max()))
  np.testing.assert_array_equal(results[1][0][1][:, 2], 0)


def test_causal_outputs_do_not_depend_on_the_future():
  q, k = (features.elu_features(random(1, 9, 1, 4, seed=i)) for i in (0, 1))
  v = random(1, 9, 1, 4, seed=2)

  def upto(k, v):
    return linear.kernelized_linear_attention(q, k, v, causal=True, chunk=4)[:, 5].sum()

  for grad in jax.grad(upto, argnums=(0, 1))(k, v):
    np.testing.assert_array_equal(grad[:, 6:], 0)
    assert np.all(np.abs(grad[:, :6]).sum((2, 3)) > 0)


@pytest.mark.parametrize("causal", [False, True])
def test_local_attention_is_softmax_under_its_mask(causal):
  q, k, v = (random(2, 11, 2, 4, seed=i) for i in range(3))
  mask = jax.random.bernoulli(jax.random.key(7), 0.6, (2, 11))
  blocked = local_window.kernelized_local_attention(q, k, v, 3, mask=mask, causal=causal)
  dense, _ = local_window.masked_local_attention(q, k, v, 3, mask=mask, causal=causal)
  np.testing.assert_allclose(blocked, dense, atol=2e-6)
  near = np.asarray(local_window.block_local_mask(11, 3, causal=causal))
  for i in range(11):
    for j in range(11):
      assert near[i, j] == (abs(i // 3 - j // 3) <= 1 and (not causal or j <= i))


def test_causal_features_of_the_softmax_kernel_are_finite_and_know_no_later_token():
  """The stabilizer's maximum over all keys did not cancel: later tokens moved earlier outputs."""
  w = random(40, 64, seed=1) * 2
  for size in (1, 1e3):
    k = size * random(2, 6, 2, 64)
    phi = features.softmax_key_features(k, w, stabilizer="none")
    other = features.softmax_key_features(k.at[:, 4:].multiply(9), w, stabilizer="none")
    np.testing.assert_array_equal(phi[:, :4], other[:, :4])
    loss = lambda k: features.softmax_key_features(k, w, stabilizer="none").sum()  # noqa: E731
    assert np.isfinite(phi).all() and np.isfinite(jax.grad(loss)(k)).all()
