"""The TPU's kernel, interpreted, agrees with the masked path; an op lowered for TPU calls it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.slow import all_but
from vitx import ops
from vitx.ops.implementation import lowering_for
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import PATTERNS, MaskFunction
from vitx.ops.sparse import splash

GRID = TokenLayout((15, 20), prefix=1)
NAMES = (
  *("full", "causal", "bigbird_R+W+G", "strided_merged_paper", "fixed_causal"),
  *("neighborhood_dilated", "axial_per_head", "attention_free", "erdos_renyi_symmetric"),
  "some see nothing",
)
SOME = MaskFunction(lambda b, h, q, k: (q < 100) & (k < 90 + h), 4)


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
@pytest.mark.parametrize("name", all_but("bigbird_R+W+G", "axial_per_head", of=NAMES))
def test_as_masked(name, dtype):
  pattern = PATTERNS.get(name, SOME)
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


def lower(pattern, n=2048, **given):
  """Returns the program of an op and its gradients for a TPU, as text."""
  q = jax.ShapeDtypeStruct((1, n, 4, 64), jnp.bfloat16)
  layout = TokenLayout((n,))

  def loss(q, k, v):
    out, _ = ops.attention(q, k, v, pattern, layout, implementation="kernelized", **given)
    return jnp.sum(out.astype(jnp.float32) ** 2)

  with lowering_for("tpu"):
    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(q, q, q)
    return traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.parametrize("pattern", [None, PATTERNS["bigbird_etc"]], ids=["dense", "bigbird"])
def test_an_op_for_tpu_calls_it(pattern):
  text = lower(pattern)
  assert len(re.findall(r"tpu_custom_call", text)) == 3  # forward, dq, dk and dv
  assert not re.findall(r"tensor<(?:\d+x)*2048x(?:\d+x)*2048x", text)


def test_what_is_not_its_takes_our_tiles():
  seen = jnp.ones((1, 2048), bool)
  assert "tpu_custom_call" not in lower(None, key_mask=seen)
  with lowering_for("cpu"):
    assert "tpu_custom_call" not in lower_here(PATTERNS["bigbird_etc"])


def lower_here(pattern):
  q = jax.ShapeDtypeStruct((1, 256, 4, 16), jnp.float32)
  return jax.jit(lambda *x: ops.attention(*x, pattern)[0]).trace(q, q, q).lower().as_text()
