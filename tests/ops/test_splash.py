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
  **{name: PATTERNS[name] for name in ("full", "causal", "bigbird_R+W+G", "bigbird_etc")},
  **{name: PATTERNS[name] for name in ("strided_merged_paper", "fixed_causal", "axial_per_head")},
  "neighborhood_and_class": Neighborhood(7) | Global(prefix=True),
  **{name: PATTERNS[name] for name in ("attention_free", "erdos_renyi_symmetric")},
  "some see nothing": MaskFunction(lambda b, h, q, k: (q < 100) & (k < 90 + h), 4),
}


def compare(name, dtype, tolerance):
  def interpreted(q, k, v):
    return splash.splash_attention(q, k, v, CASES[name], GRID, interpret=True)

  arrays, mask = cases.inputs(2, GRID.length, 4, 16, 0, dtype), ops.dense_mask(CASES[name], GRID, 4)
  cases.check(interpreted, arrays, mask=mask, tolerance=tolerance)


@pytest.mark.parametrize("name", all_but("axial_per_head", of=CASES))
def test_as_masked(name):
  compare(name, np.float32, 1e-5)


@pytest.mark.parametrize("name", all_but("bigbird_R+W+G", of=("bigbird_R+W+G", "axial_per_head")))
def test_as_masked_in_half_precision(name):
  compare(name, jnp.bfloat16, 5e-2)


def on_tpu(pattern, n=2048, platform="tpu", **given):
  return program(
    platform, jnp.bfloat16, n, heads=4, pattern=pattern, layout=TokenLayout((n,)), **given
  )


BIGBIRD = bigbird(block=64, random=3, heads=4)


@pytest.mark.parametrize("pattern", [None, BIGBIRD], ids=["dense", "bigbird"])
def test_an_op_for_tpu_calls_it(pattern):
  text = on_tpu(pattern)
  assert len(re.findall(r"tpu_custom_call", text)) == 3  # forward, dq, dk and dv
  assert not matrices(text, 2048)


def test_what_is_not_its_takes_our_tiles():
  assert "tpu_custom_call" not in on_tpu(None, masked=True)
  assert "tpu_custom_call" not in on_tpu(BIGBIRD, platform="cpu")


def test_edges_of_random_tokens_take_our_tiles():
  """Splash attention would store nearly every block of 128 tokens, since each differs."""
  small = bigbird(block=8, random=2, heads=4)
  assert "tpu_custom_call" not in on_tpu(small)
  assert "tpu_custom_call" in on_tpu(small, 512)  # with few blocks, all of them may be stored
