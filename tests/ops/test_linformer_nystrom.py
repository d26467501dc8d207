"""Nyström, Linformer, Fourier and shaped attention against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.slow import all_but
from vitx.ops.kernels import fourier, linformer, nystrom, shaped
from vitx.ops.kernels.softmax import masked_attention, masked_softmax


def random(*shape, seed=0):
  return jax.random.normal(jax.random.key(seed), shape)


def test_segment_means_leave_out_masked_tokens_and_the_missing_end():
  x = random(2, 7, 1, 3)
  mask = jnp.ones((2, 7), bool).at[0, 1].set(False).at[1, 4:6].set(False)
  means, used = nystrom.segment_means(x, 4, mask=mask)  # segments of 2, 2, 2, 1
  expected = [[x[0, [0]], x[0, 2:4], x[0, 4:6], x[0, 6:]], [x[1, :2], x[1, 2:4], [], x[1, 6:]]]
  for b, row in enumerate(expected):
    for m, tokens in enumerate(row):
      assert used[b, m] == bool(len(tokens))
      mean = jnp.mean(tokens, axis=0) if len(tokens) else 0
      np.testing.assert_allclose(means[b, m], mean * jnp.ones((1, 3)), atol=1e-6)
  assert nystrom.segment_means(x, 5)[0].shape[1] == 4  # 5 segments of 2 would leave one empty


def test_pseudo_inverse_inverts_and_keeps_examples_apart():
  a = masked_softmax(2 * random(2, 3, 8, 8))
  z = nystrom.pseudo_inverse(a, 20)
  np.testing.assert_allclose(a @ z @ a, a, atol=2e-3)
  other = a.at[1].set(jnp.eye(8))
  for scale, touched in (("example", False), ("batch", True)):
    x, y = (nystrom.pseudo_inverse(b, 6, scale=scale)[0] for b in (a, other))
    assert (not np.array_equal(x, y)) == touched
  assert np.all(np.isfinite(nystrom.pseudo_inverse(jnp.zeros((1, 1, 4, 4)))))


def test_a_landmark_for_each_token_gives_softmax():
  q, k, v = (random(1, 8, 2, 4, seed=i) for i in range(3))
  expected, matrix = masked_attention(q, k, v)
  out, found = nystrom.masked_nystrom_attention(q, k, v, 8, iterations=25)
  np.testing.assert_allclose(found, matrix, atol=3e-3)
  np.testing.assert_allclose(out, expected, atol=1e-2)
  fast = nystrom.kernelized_nystrom_attention(q, k, v, 8, iterations=25)
  np.testing.assert_allclose(fast, out, atol=1e-4)


@pytest.mark.parametrize(
  ("length", "taps"), all_but(65, 66, of=[(5, 33), (64, 5), (65, 33), (150, 131), (66, 1)])
)
def test_depthwise_convolution_against_numpy(length, taps):
  x, w = np.asarray(random(2, length, 2, 3)), np.asarray(random(taps, 2, seed=1))
  expected = np.zeros_like(x)
  for i in range(taps):
    shift = i - taps // 2
    for n in range(max(0, -shift), min(length, length - shift)):
      expected[:, n] += w[i][:, None] * x[:, n + shift]
  np.testing.assert_allclose(nystrom.depthwise_convolution(x, w), expected, atol=2e-5)


def test_slots_are_sums_without_masked_tokens():
  x, e = random(2, 6, 2, 3), random(6, 4, seed=1)
  mask = jnp.ones((2, 6), bool).at[1, 2].set(False)
  kept = np.asarray(x) * np.asarray(mask)[:, :, None, None]
  expected = np.einsum("bnhd,nm->bmhd", kept, e)
  poisoned = x.at[1, 2].set(jnp.nan)
  np.testing.assert_allclose(linformer.to_slots(poisoned, e, mask=mask), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 8, 6), (1, 17, 5)])
def test_fourier_mixing_against_numpy(shape):
  x = random(*shape)
  expected = np.fft.fft2(np.float64(x), axes=(1, 2)).real
  np.testing.assert_allclose(fourier.fast_fourier_mixing(x), expected, atol=1e-4)
  out, (cos, sin) = fourier.masked_fourier_mixing(x)
  np.testing.assert_allclose(out, expected, atol=1e-4)
  np.testing.assert_allclose(cos @ cos + sin @ sin, shape[1] * np.eye(shape[1]), atol=1e-3)


@pytest.mark.parametrize("maps", [1, 2])
def test_shaped_attention_is_its_formula(maps):
  q, k = random(2, 6, maps, 4), random(2, 6, maps, 4, seed=1)
  v = random(2, 6, 2, 5, seed=2)
  mask = jnp.ones((2, 6), bool).at[0, 4:].set(False).at[1].set(False)
  a, b, c = jnp.array([0.3, 1.0]), jnp.array([0.7, -0.5]), jnp.array([0.2, 0.9])
  out, matrix = shaped.masked_shaped_attention(q, k, v, a, b, c, mask=mask)
  probabilities = masked_attention(q, k, k, mask=mask[:, None, None])[1]
  uniform = np.array([[1 / 4] * 4 + [0] * 2, [0] * 6])[:, None, None]
  eye = np.eye(6) * np.asarray(mask)[:, None, None]
  expand = lambda x: x[:, None, None]  # noqa: E731
  expected = expand(a) * eye + expand(b) * probabilities - expand(c) * uniform
  np.testing.assert_allclose(matrix, expected, atol=1e-6)
  np.testing.assert_allclose(out, jnp.einsum("bhnm,bmhe->bnhe", expected, v), atol=1e-5)
  np.testing.assert_allclose(
    shaped.kernelized_shaped_attention(q, k, v, a, b, c, mask=mask), out, atol=1e-5
  )
