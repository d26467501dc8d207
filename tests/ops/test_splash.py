"""The TPU's kernel, interpreted, agrees with the masked path; an op lowered for TPU calls it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.lowered import lower, matrices
from tests.slow import all_but
from vitx import ops
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import (
  PATTERNS,
  Fixed,
  Global,
  MaskFunction,
  Neighborhood,
  Strided,
  bigbird,
)
from vitx.ops.sparse import splash

GRID = TokenLayout((15, 20), prefix=1)  # 301 tokens: no whole blocks
CLASS = Global(prefix=True)
CASES = {
  **{name: PATTERNS[name] for name in ("full", "causal", "bigbird_R+W+G", "bigbird_etc")},
  **{name: PATTERNS[name] for name in ("strided_merged_paper", "fixed_causal")},
  "strided_bidirectional_and_class": Strided(form="bidirectional") | CLASS,
  "fixed_bidirectional_and_class": Fixed(summary=2, causal=False) | CLASS,
  "neighborhood_and_class": Neighborhood(7) | CLASS,
  **{name: PATTERNS[name] for name in ("neighborhood_dilated", "axial_per_head")},
  **{name: PATTERNS[name] for name in ("attention_free", "erdos_renyi_symmetric")},
  "some see nothing": MaskFunction(lambda b, h, q, k: (q < 100) & (k < 90 + h), 4),
}


def draw(n, width=16, heads=4, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(n), 3)
  return [jax.random.normal(key, (2, n, heads, width), dtype) for key in keys]


def gradients(function, *arrays):
  def loss(*arrays):
    out = function(*arrays)
    return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

  found, out = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)
  return out, *found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", all_but("bigbird_R+W+G", "axial_per_head", of=CASES))
def test_as_masked(name, dtype):
  pattern = CASES[name]
  arrays = draw(GRID.length, dtype=jnp.dtype(dtype))

  def interpreted(*arrays):
    return splash.splash_attention(*arrays, pattern, GRID, interpret=True)

  def masked(*arrays):
    return ops.attention(*arrays, pattern, GRID, implementation="masked")[0]

  found = gradients(interpreted, *arrays)
  expected = gradients(masked, *(x.astype(jnp.float32) for x in arrays))
  tolerance = 1e-5 if dtype == "float32" else 5e-2
  for each, wanted in zip(found, expected, strict=True):
    np.testing.assert_allclose(each.astype(jnp.float32), wanted, rtol=tolerance, atol=tolerance)


def program(pattern, n=2048, platform="tpu", **given):
  """Returns the program of an op and its gradients as text."""
  q = jax.ShapeDtypeStruct((1, n, 4, 64), jnp.bfloat16)
  layout = TokenLayout((n,))

  def loss(q, k, v):
    out, _ = ops.attention(q, k, v, pattern, layout, implementation="kernelized", **given)
    return jnp.sum(out.astype(jnp.float32) ** 2)

  return lower(jax.grad(loss, argnums=(0, 1, 2)), q, q, q, platform=platform)


BIGBIRD = bigbird(block=64, random=3, heads=4)


@pytest.mark.parametrize("pattern", [None, BIGBIRD], ids=["dense", "bigbird"])
def test_an_op_for_tpu_calls_it(pattern):
  text = program(pattern)
  assert len(re.findall(r"tpu_custom_call", text)) == 3  # forward, dq, dk and dv
  assert not matrices(text, 2048)


def test_what_is_not_its_takes_our_tiles():
  seen = jnp.ones((1, 2048), bool)
  assert "tpu_custom_call" not in program(None, key_mask=seen)
  assert "tpu_custom_call" not in program(BIGBIRD, platform="cpu")


def test_edges_of_random_tokens_take_our_tiles():
  """Nearly every block of 128 tokens would be partly filled in a way of its own."""
  small = bigbird(block=8, random=2, heads=4)
  assert "tpu_custom_call" not in program(small)
  assert "tpu_custom_call" in program(small, 512)  # of so few blocks all may be held
