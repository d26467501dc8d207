"""Attention to predicted keys: masked, gathered and hidden agree; only the first is N x N."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx.analysis.cost import flops
from vitx.ops import predicted_attention, predicted_block_attention
from vitx.ops.kernels import predicted, tiling

SLOW = pytest.mark.slow  # compiles a lot
B, N, H, D, S = 2, 41, 2, 8, 6  # nothing divides anything


def inputs(n=N, prefix=0, dtype=jnp.float32, ties=True):
  """Arrays of attention, coefficients and a basis of which most is pruned, and a mask of keys."""
  rng = np.random.default_rng(0)
  coefficients = rng.random((B, H, n - prefix, S)) * (rng.random((B, H, n - prefix, S)) < 0.4)
  basis = rng.random((n, S)) * (rng.random((n, S)) < 0.3)
  if ties:
    coefficients, basis = np.round(2 * coefficients) / 2, np.round(2 * basis)
  mask = rng.random((B, n)) < 0.7
  mask[0, 3:] = False  # fewer keys than are kept
  arrays = cases.inputs(B, n, H, D, dtype=dtype)
  return arrays, (jnp.asarray(coefficients, jnp.float32), jnp.asarray(basis, jnp.float32)), mask


def everything(kept, implementation, prefix=0, mask=None, dtype=jnp.float32, **given):
  (q, k, v, d_out), chosen, key_mask = inputs(prefix=prefix, dtype=dtype)
  given["key_mask"] = jnp.asarray(key_mask) if mask else None

  def run(q, k, v):
    attend = lambda q, k, v: predicted_attention(  # noqa: E731
      q, k, v, *chosen, kept, prefix=prefix, implementation=implementation, **given
    )[0]
    out, vjp = jax.vjp(attend, q, k, v)
    return out, *vjp(d_out.astype(out.dtype))

  return [np.asarray(x, np.float32) for x in jax.jit(run)(q, k, v)]


@pytest.mark.parametrize(
  ("kept", "prefix", "mask", "predictor"),
  [
    (2, 1, True, "auto"),
    (9, 1, False, "auto"),
    pytest.param(2, 0, False, "sparse", marks=SLOW),
    pytest.param(9, 0, True, "sparse", marks=SLOW),
    pytest.param(41, 2, True, "auto", marks=SLOW),
  ],
)
def test_paths_agree_ties_included(kept, prefix, mask, predictor, monkeypatch):
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", 1 << 11)  # several parts and tiles
  monkeypatch.setattr(predicted, "FEWEST_ROWS", 5)
  assert predicted.gathers(N, kept) == (kept == 2)
  expected = everything(kept, "masked", prefix, mask)
  found = everything(kept, "kernelized", prefix, mask, predictor=predictor)
  for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, np.abs(b).max()), err_msg=name)


def test_masked_keeps_the_first_of_equal_scores():
  arrays, (coefficients, basis), _ = inputs()
  matrix = predicted_attention(*arrays[:3], coefficients, basis, 9, implementation="masked")[1]
  scores = np.einsum("bhns,ms->bhnm", coefficients, basis)
  for place in np.ndindex(B, H, N):
    order = sorted(range(N), key=lambda m: (-scores[place][m], m))
    assert set(np.flatnonzero(matrix[place])) == set(order[:9])


@SLOW
@pytest.mark.parametrize("kept", [2, 9])
def test_bfloat16(kept):
  half = everything(kept, "kernelized", dtype=jnp.bfloat16)
  theirs = everything(kept, "masked", dtype=jnp.bfloat16)
  exact = everything(kept, "masked")  # of other numbers: rounded to half precision first
  (q, k, v, _), _, _ = inputs(dtype=jnp.bfloat16)
  assert q.dtype == k.dtype == v.dtype == jnp.bfloat16
  for a, b, e in zip(half, theirs, exact, strict=True):
    error, allowed = (np.sqrt(np.mean((x - e) ** 2)) for x in (a, b))
    assert error <= 1.5 * allowed


@SLOW
def test_without_jit_and_under_vmap():
  (q, k, v, _), (coefficients, basis), _ = inputs()
  for kept in (2, 9):
    attend = lambda *x, kept=kept: predicted_attention(*x, kept, implementation="kernelized")[0]  # noqa: E731
    expected = jax.jit(attend)(q, k, v, coefficients, basis)
    alone = jax.vmap(lambda *x, f=attend: f(*(y[None] for y in x), basis)[0])
    for found in (attend(q, k, v, coefficients, basis), alone(q, k, v, coefficients)):
      np.testing.assert_allclose(found, expected, atol=2e-6)


def growing(n, kept, block=None):
  """The gradient at n tokens, as a function and its inputs' shapes."""
  x = jax.ShapeDtypeStruct((1, n, 2, 32), jnp.float32)
  coefficients = jax.ShapeDtypeStruct((1, 2, n, 32), jnp.float32)
  basis = jax.ShapeDtypeStruct((n, 32), jnp.float32)

  def loss(q, k, v, *chosen):
    if block is None:
      out = predicted_attention(q, k, v, *chosen, kept, implementation="kernelized")[0]
    else:
      out = predicted_block_attention(q, k, v, *chosen, kept, block, implementation="kernelized")[0]
    return jnp.sum(out)

  return jax.grad(loss, argnums=(0, 1, 2)), (x, x, x, coefficients, basis)


@SLOW
@pytest.mark.parametrize("kind", ["gathered", "hidden", "blocks"])
def test_memory_is_linear(kind, monkeypatch):
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", 1 << 16)
  lengths, memory, work = [1024, 2048, 4096, 8192], [], []
  for n in lengths:
    kept = {"gathered": 16, "hidden": n // 4, "blocks": 4}[kind]
    function, shapes = growing(n, kept, 64 if kind == "blocks" else None)
    program = jax.jit(function).lower(*shapes).compile()
    memory.append(program.memory_analysis().temp_size_in_bytes)
    work.append(flops(function, *shapes))
  cases.assert_linear(lengths, memory)
  power = {"gathered": 2, "hidden": 2, "blocks": 1}[kind]  # all keys are scored, of blocks few
  assert cases.exponent(lengths, work) < power + 0.15


@pytest.mark.parametrize("kept", [8, 100])
def test_lowers_for_accelerators(kept):
  function, shapes = growing(300, kept)
  exported = jax.export.export(jax.jit(function), platforms=("cuda", "tpu"))(*shapes)
  assert exported.platforms == ("cuda", "tpu")
