"""Dense tiled attention equals the masked reference, in linear memory."""

import functools

import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx.ops.kernels import tiling
from vitx.ops.kernels.flash import flash_attention

pytestmark = pytest.mark.slow  # compiles dozens of programs: minutes in all


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "heads", "dim"), [(65, 2, 32), (197, 3, 64), (530, 1, 16)])
def test_tiles_equal_the_reference(n, heads, dim, causal, monkeypatch):
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", 1 << 17)  # several tiles even here
  arrays = cases.inputs(2, n, heads, dim)
  key_mask = cases.seen_keys(2, n, 0.8)
  key_mask[1] = False
  mask = key_mask[:, None, None] & (np.tri(n, dtype=bool) if causal else True)
  kernel = functools.partial(flash_attention, key_mask=key_mask, causal=causal)
  results = cases.check(kernel, arrays, cases.lse_cotangent(2, n, heads), mask=mask)
  out, lse, *grads = results
  np.testing.assert_array_equal(out[1], 0)  # the second example sees no key at all
  np.testing.assert_array_equal(lse[1], -np.inf)
  for grad in grads:
    np.testing.assert_array_equal(grad[1], 0)
  for grad in grads[1:]:
    np.testing.assert_array_equal(grad[0][~key_mask[0]], 0)


def test_queries_and_keys_may_have_two_lengths():
  q, _, _, d_out = cases.inputs(2, 30, 2, 16)
  _, k, v, _ = cases.inputs(2, 71, 2, 16, seed=1)
  cases.check(functools.partial(flash_attention, scale=0.3), (q, k, v, d_out), scale=0.3)


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_is_as_exact_as_the_reference(causal):
  mask = np.tri(197, dtype=bool) if causal else None
  kernel = functools.partial(flash_attention, causal=causal)
  cases.assert_bfloat16_keeps_up(kernel, cases.inputs(2, 197, 2, 32), mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [65, 530])
def test_a_query_may_not_attend_itself(n, causal, monkeypatch):
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", 1 << 17)
  seen = ~np.eye(n, dtype=bool) & (np.tri(n, dtype=bool) if causal else True)
  kernel = functools.partial(flash_attention, causal=causal, self_edge=False)
  results = cases.check(kernel, cases.inputs(2, n, 2, 16), cases.lse_cotangent(2, n, 2), mask=seen)
  if causal:  # the first query sees nothing
    np.testing.assert_array_equal(results[0][:, 0], 0)
    np.testing.assert_array_equal(results[2][:, 0], 0)


@pytest.mark.parametrize("causal", [False, True])
def test_logits_may_be_far_below_zero(causal, monkeypatch):
  """A bias of the keys may lower all logits of a query alike, which changes no attention."""
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", 1 << 17)  # several tiles, the last one padded
  q, k, v, d_out = cases.inputs(1, 533, 1, 16)
  q[..., 0], k[..., 0] = 20, -20
  mask = np.tri(533, dtype=bool) if causal else None
  kernel = functools.partial(flash_attention, causal=causal)
  arrays, d_lse = (q, k, v, d_out), cases.lse_cotangent(1, 533, 1)
  cases.check(kernel, arrays, d_lse, mask=mask, tolerance=1e-4)  # float32 rounds such logits
