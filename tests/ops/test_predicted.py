"""Attention to predicted keys: three paths agree, and only the masked one holds N x N."""

import jax
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from tests.ops.test_selection import first
from vitx.ops import predicted_attention
from vitx.ops.kernels import predicted, tiling

SLOW = pytest.mark.slow  # compiles a lot
B, N, H, D, S = 2, 41, 2, 8, 6  # no number divides another


def inputs(n=N, prefix=0):
  """Returns q, k, v and a cotangent, coefficients and a pruned basis, and a mask of keys."""
  rng = np.random.default_rng(0)
  coefficients = rng.random((B, H, n - prefix, S)) * (rng.random((B, H, n - prefix, S)) < 0.4)
  basis = rng.random((n, S)) * (rng.random((n, S)) < 0.3)
  coefficients, basis = np.round(2 * coefficients) / 2, np.round(2 * basis)  # many scores tie
  mask = rng.random((B, n)) < 0.7
  mask[0, 3:] = False  # fewer keys than are kept
  chosen = coefficients.astype(np.float32), basis.astype(np.float32)
  return cases.inputs(B, n, H, D), chosen, mask


def everything(count, implementation, prefix=0, mask=None, **options):
  arrays, chosen, key_mask = inputs(prefix=prefix)
  options["key_mask"] = key_mask if mask else None

  def attend(q, k, v):
    return predicted_attention(
      q, k, v, *chosen, count, prefix=prefix, implementation=implementation, **options
    )[0]

  return cases.program(attend)(*arrays)


@pytest.mark.parametrize(
  ("count", "prefix", "mask", "predictor"),
  [
    (2, 1, True, "auto"),
    (9, 1, False, "auto"),
    pytest.param(2, 0, False, "sparse", marks=SLOW),
    pytest.param(9, 0, True, "sparse", marks=SLOW),
    pytest.param(41, 2, True, "auto", marks=SLOW),
  ],
)
def test_both_paths_agree_also_on_ties(count, prefix, mask, predictor, monkeypatch):
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", 1 << 11)  # several parts and tiles
  monkeypatch.setattr(predicted, "FEWEST_ROWS", 5)
  assert predicted.gathers(N, count) == (count == 2)
  expected = everything(count, "masked", prefix, mask)
  results = everything(count, "kernelized", prefix, mask, predictor=predictor)
  cases.assert_close(results, expected)


def test_the_masked_path_keeps_the_first_of_equal_scores():
  arrays, chosen, _ = inputs()
  matrix = jax.jit(lambda *x: predicted_attention(*x, *chosen, 9, implementation="masked")[1])
  mask = first(np.einsum("bhns,ms->bhnm", *chosen), 9)  # of equal scores, the first keys
  np.testing.assert_array_equal(np.asarray(matrix(*arrays[:3])) > 0, mask)
  cases.assert_close(everything(9, "masked"), cases.reference(*arrays, mask=mask))
