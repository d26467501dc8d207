"""Nyström, Linformer and Fourier attention against their definitions."""

import functools

import jax
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx import ops
from vitx.ops.kernels import nystrom
from vitx.ops.kernels.softmax import masked_attention


def random(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_segment_means_leave_out_masked_tokens_and_the_missing_end():
  x = random(2, 7, 1, 3)
  mask = np.ones((2, 7), bool)
  mask[0, 1], mask[1, 4:6] = False, False
  means, used = jax.jit(lambda x: nystrom.segment_means(x, 4, mask=mask))(x)  # 2, 2, 2 and 1 tokens
  expected = [[x[0, [0]], x[0, 2:4], x[0, 4:6], x[0, 6:]], [x[1, :2], x[1, 2:4], [], x[1, 6:]]]
  for b, row in enumerate(expected):
    for m, tokens in enumerate(row):
      assert used[b, m] == bool(len(tokens))
      mean = np.mean(tokens, axis=0) if len(tokens) else 0
      np.testing.assert_allclose(means[b, m], mean * np.ones((1, 3)), atol=1e-6)
  fewer = jax.eval_shape(lambda x: nystrom.segment_means(x, 5)[0], x)
  assert fewer.shape[1] == 4  # 5 segments of 2 would leave one empty


def test_pseudo_inverse_inverts_and_keeps_examples_apart():
  a = np.exp(2 * random(2, 3, 8, 8))
  a /= a.sum(-1, keepdims=True)
  invert = jax.jit(nystrom.pseudo_inverse, static_argnums=1, static_argnames="scale")
  np.testing.assert_allclose(a @ np.asarray(invert(a, 20)) @ a, a, atol=2e-3)
  other = a.copy()
  other[1] = np.eye(8)
  for scale, touched in (("example", False), ("batch", True)):
    x, y = (np.asarray(invert(b, 6, scale=scale))[0] for b in (a, other))
    assert (not np.array_equal(x, y)) == touched
  assert np.all(np.isfinite(invert(np.zeros_like(a), 20)))


def test_a_landmark_for_each_token_gives_softmax():
  q, k, v = (random(1, 8, 2, 4, seed=i) for i in range(3))
  (out, product), fast, (expected, matrix) = jax.jit(
    lambda *x: (
      ops.nystrom_attention(*x, 8, iterations=25, implementation="masked"),
      ops.nystrom_attention(*x, 8, iterations=25, implementation="kernelized")[0],
      masked_attention(*x),
    )
  )(q, k, v)
  np.testing.assert_allclose(product, matrix, atol=3e-3)
  np.testing.assert_allclose(out, expected, atol=1e-2)
  np.testing.assert_allclose(fast, out, atol=1e-4)


@pytest.mark.parametrize(("length", "taps"), [(5, 33), (64, 5), (65, 33), (150, 131), (66, 1)])
def test_the_depthwise_convolution_equals_numpy(length, taps):
  x, w = random(2, length, 2, 3), random(taps, 2, seed=1)
  expected = np.zeros_like(x)
  for i in range(taps):
    shift = i - taps // 2
    for n in range(max(0, -shift), min(length, length - shift)):
      expected[:, n] += w[i][:, None] * x[:, n + shift]
  output = jax.jit(nystrom.depthwise_convolution)(x, w)
  np.testing.assert_allclose(output, expected, atol=2e-5)


@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
def test_slots_are_sums_without_masked_tokens(implementation):
  q, k, v = (random(2, 6, 2, 3, seed=i) for i in range(3))
  e, f = random(6, 4, seed=3), random(6, 4, seed=4)
  mask = np.ones((2, 6), bool)
  mask[1, 2] = False
  slots = [np.einsum("bnhd,nm->bmhd", x * mask[..., None, None], y) for x, y in ((k, e), (v, f))]
  k[1, 2] = v[1, 2] = np.nan
  attend = functools.partial(ops.linformer_attention, key_mask=mask, implementation=implementation)
  out, _ = jax.jit(attend)(q, k, v, e, f)
  np.testing.assert_allclose(out, cases.masked(q, *slots)[0], atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 8, 6), (1, 17, 5)])
def test_fourier_mixing_equals_numpy(shape):
  x = random(*shape)
  expected = np.fft.fft2(np.float64(x), axes=(1, 2)).real
  fast, (out, matrices) = jax.jit(
    lambda x: (
      ops.fourier_mixing(x, implementation="kernelized")[0],
      ops.fourier_mixing(x, implementation="masked"),
    )
  )(x)
  for output in (fast, out):
    np.testing.assert_allclose(output, expected, atol=1e-4)
  cos, sin = np.asarray(matrices)[0]
  np.testing.assert_allclose(cos @ cos + sin @ sin, shape[1] * np.eye(shape[1]), atol=1e-3)
