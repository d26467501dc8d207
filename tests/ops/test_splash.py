"""Splash attention, interpreted, agrees with the masked path; ops lowered for TPU call it."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from tests.ops.lowered import matrices, program
from tests.slow import all_but
from vitx import ops
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import PATTERNS, Global, MaskFunction, Neighborhood, bigbird
from vitx.ops.sparse import splash

GRID = TokenLayout((15, 20), prefix=1)  # 301 tokens: no whole blocks
CASES = {
  **{name: PATTERNS[name] for name in ("causal", "bigbird_R+W+G", "fixed_causal")},
  **{name: PATTERNS[name] for name in ("axial_per_head", "attention_free")},
  "neighborhood_and_class": Neighborhood(7) | Global(prefix=True),
  "some see nothing": MaskFunction(lambda b, h, q, k: (q < 100) & (k < 90 + h), 4),
}


HALF = ("bigbird_R+W+G", jnp.bfloat16, 5e-2)
WHOLE = [(name, np.float32, 1e-5) for name in CASES if name != HALF[0]]


@pytest.mark.parametrize(("name", "dtype", "tolerance"), all_but(HALF[0], of=[*WHOLE, HALF]))
def test_the_kernel_equals_the_masked_path(name, dtype, tolerance):
  def interpreted(q, k, v):
    return splash.splash_attention(q, k, v, CASES[name], GRID, interpret=True)

  arrays, mask = cases.inputs(2, GRID.length, 4, 16, 0, dtype), ops.dense_mask(CASES[name], GRID, 4)
  cases.check(interpreted, arrays, mask=mask, tolerance=tolerance)


def on_tpu(pattern, n=2048, platform="tpu", **options):
  return program(
    platform, jnp.bfloat16, n, heads=4, pattern=pattern, layout=TokenLayout((n,)), **options
  )


BIGBIRD = bigbird(block=64, random=3, heads=4)


@pytest.mark.parametrize("pattern", [None, BIGBIRD], ids=["dense", "bigbird"])
def test_an_op_for_tpu_calls_the_kernel(pattern):
  text = on_tpu(pattern)
  assert len(re.findall(r"tpu_custom_call", text)) == 3  # forward, dq, dk and dv
  assert not matrices(text, 2048)


def test_other_calls_are_computed_by_tiles():
  assert "tpu_custom_call" not in on_tpu(None, masked=True)
  assert "tpu_custom_call" not in on_tpu(BIGBIRD, platform="cpu")


def test_random_edges_are_computed_by_tiles():
  """Splash attention would store nearly every block of 128 tokens, since each differs."""
  small = bigbird(block=8, random=2, heads=4)
  assert "tpu_custom_call" not in on_tpu(small)
  assert "tpu_custom_call" in on_tpu(small, 512)  # with few blocks, all of them may be stored
