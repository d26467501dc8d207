"""Scores of a pruned prediction: the sparse and the dense predictor keep equal keys."""

import jax
import numpy as np

from vitx.ops.kernels.key_scores import predict_coefficients, score_keys

QUERIES, KEYS, SLOTS = 23, 37, 8


def pruned(exact, seed=0):
  """Draws coefficients and a basis with few nonzero entries.

  With `exact`, their products and sums are never rounded.
  """
  rng = np.random.default_rng(seed)
  coefficients = rng.random((2, QUERIES, SLOTS)) * (rng.random((2, QUERIES, SLOTS)) < 0.3)
  basis = rng.normal(size=(KEYS, SLOTS)) * (rng.random((KEYS, SLOTS)) < 0.3)
  coefficients[0, 4] = 0
  if exact:
    coefficients, basis = np.round(4 * coefficients) / 4, np.round(2 * basis)
  return coefficients.astype(np.float32), basis.astype(np.float32)


score = jax.jit(score_keys, static_argnames="predictor")


def both(*arrays):
  return [np.asarray(score(*arrays, predictor=predictor)) for predictor in ("dense", "sparse")]


def test_both_predictors_equal_the_product():
  coefficients, basis = pruned(exact=False)
  expected = np.einsum("zns,ms->znm", np.asarray(coefficients, float), np.asarray(basis, float))
  for scores in both(coefficients, basis):
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-7)
  for scores in both(np.zeros_like(coefficients), basis):
    np.testing.assert_array_equal(scores, 0)


def test_both_keep_the_same_keys_where_many_scores_are_equal():
  dense, sparse = both(*pruned(exact=True))
  np.testing.assert_array_equal(dense, sparse)
  assert len(np.unique(dense)) < 0.05 * dense.size


def test_zeros_of_both_signs_rank_as_equal():
  coefficients = np.ones((1, 1, 1), np.float32)
  basis = np.array([[-0.0], [0.0], [1.0]], np.float32)
  hidden = np.array([True, True, False])
  for scores in both(coefficients, basis, hidden):
    np.testing.assert_array_equal(scores[0, 0], [0, 0, -np.inf])
    assert not np.any(np.signbit(scores[0, 0, :2]))


def test_the_sparse_predictor_multiplies_no_matrices():
  coefficients, basis = pruned(exact=False)
  text = str(jax.make_jaxpr(lambda *x: score_keys(*x, predictor="sparse"))(coefficients, basis))
  assert "while" in text and "dot_general" not in text


def test_coefficients_equal_their_definition():
  rng = np.random.default_rng(1)
  q, k = rng.normal(size=(2, 2, 5, 3, 4))
  down, seen = rng.normal(size=(5, 6)), rng.random((2, 5)) < 0.7
  predict = jax.jit(predict_coefficients, static_argnames="scale")
  coefficients = predict(*(x.astype(np.float32) for x in (q, k, down)), key_mask=seen, scale=0.3)
  for b, h, n in np.ndindex(2, 3, 5):
    logits = 0.3 * q[b, n, h] @ ((k[b, :, h] * seen[b][:, None]).T @ down)
    weights = np.exp(logits - logits.max())
    np.testing.assert_allclose(coefficients[b, h, n], weights / weights.sum(), rtol=1e-4)
