"""Attention over kept keys: two paths agree, and keys that are not kept have no effect."""

import jax
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx.ops.kernels import tiling
from vitx.ops.kernels.top_k import kept_keys_attention, kept_mask

SLOW = pytest.mark.slow  # compiles a lot
B, N, M, H, D = 2, 65, 41, 2, 16  # no number divides another


def draw(heads, count, queries=N, keys=M, seed=0):
  """Draws indices (B, H, N, K), and a mask of the valid ones.

  Query 3 keeps no key, and no query keeps key 5.
  """
  rng = np.random.default_rng(seed)
  scores = rng.random((B, heads, queries, keys))
  scores[..., 5] = 2
  indices = np.argsort(scores, axis=-1)[..., :count].astype(np.int32)
  valid = rng.random(indices.shape) < 0.8
  valid[:, :, 3] = False
  # Invalid indices may have any value in the range.
  return np.where(valid, indices, rng.integers(0, keys, indices.shape)).astype(np.int32), valid


def arrays(dtype=np.float32):
  q, _, _, d_out = cases.inputs(B, N, H, D, 0, dtype)
  _, k, v, _ = cases.inputs(B, M, H, D, 1, dtype)
  return q, k, v, d_out


def kernel(indices, valid, scale=None):
  return lambda q, k, v: kept_keys_attention(q, k, v, indices, valid, scale=scale)


def dense(indices, valid):
  """Returns the kept keys as a mask (B, H or 1, N, M)."""
  mask = np.zeros((*indices.shape[:3], M), bool)
  for place in zip(*np.nonzero(valid), strict=True):
    mask[(*place[:3], indices[place])] = True
  return mask


def test_the_mask_contains_exactly_the_kept_keys():
  indices, valid = draw(2, 7)
  mask = dense(indices, valid)
  result = jax.jit(lambda *x: kept_mask(*x, M))(indices, valid)
  np.testing.assert_array_equal(result, mask)
  assert not mask[..., 5].any() and not mask[:, :, 3].any()
  # The count is exact even if scores tie; a threshold at the last score would let ties in.
  ties = jax.jit(lambda x: kept_mask(jax.lax.top_k(x, 4)[1], None, 9))(np.zeros((3, 9), np.float32))
  np.testing.assert_array_equal(np.sum(ties, -1), 4)


@pytest.mark.parametrize(
  ("heads", "count", "step", "scale"),
  [(2, 7, 1 << 13, None), (1, 1, 1 << 20, None), (1, 5, 1 << 20, 0.7)],
)
def test_attention_to_kept_keys_equals_the_reference(heads, count, step, scale, monkeypatch):
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", step)  # several tiles, or all heads at once
  indices, valid = draw(heads, count)
  mask = dense(indices, valid)
  results = cases.check(kernel(indices, valid, scale), arrays(), mask=mask, scale=scale)
  out, dq, dk, dv = results
  for array in (out[:, 3], dq[:, 3], dk[:, 5], dv[:, 5]):
    np.testing.assert_array_equal(array, 0)


def test_a_key_that_no_query_keeps_changes_nothing():
  (q, k, v, d_out), run = arrays(), cases.program(kernel(*draw(1, 6)))
  results = run(q, k, v, d_out)
  k[:, 5] *= -30
  v[:, 5] = 1e9
  for a, b in zip(results, run(q, k, v, d_out), strict=True):
    np.testing.assert_array_equal(a, b)
