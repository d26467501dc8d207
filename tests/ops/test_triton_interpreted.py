"""The GPU's kernels, run step by step by Triton's interpreter, agree with softmax under a mask.

CI runs this file in an environment that has jax-triton: `TRITON_INTERPRET=1 pytest FILE`.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
  pytest.skip("needs TRITON_INTERPRET=1, in a process of its own", allow_module_level=True)
pytest.importorskip("jax_triton")

from tests.ops import attention_cases as cases
from tests.ops import triton_interpreter
from vitx import ops
from vitx.ops.implementation import lowering_for
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import (
  PATTERNS,
  Axial,
  Causal,
  Full,
  Global,
  MaskFunction,
  Neighborhood,
  Window,
  bigbird,
)
from vitx.ops.sparse import triton_attention
from vitx.ops.sparse.attend import block_mask
from vitx.ops.sparse.block_sparse import block_sparse_attention, block_sparse_attention_dynamic
from vitx.ops.sparse.chosen_blocks import attend_chosen
from vitx.ops.sparse.triton_attention import Launch, TileSizes

GRID = TokenLayout((11, 13), prefix=1)  # 144 tokens; without the prefix 143, which no block divides
SEQUENCE = TokenLayout((150,))
SHORT = TokenLayout((70,))  # three tiles
LARGE = TileSizes(64, Launch(2, 4, 3), Launch(2, 8, 2), Launch(2, 8, 2))
SMALL = TileSizes(32, Launch(2, 4, 2), Launch(1, 4, 2), Launch(3, 4, 2))
BIGBIRD = "bigbird and a class token"
CASES = {  # the pattern, its layout and the sizes of the tiles
  "full": (Full(), SEQUENCE, LARGE),
  "causal": (Causal(), SEQUENCE, SMALL),
  "causal window": (Window(40, 0) & Causal(), SEQUENCE, SMALL),
  "bigbird": (bigbird(block=16, random=1, heads=4) & Causal(), SEQUENCE, LARGE),
  BIGBIRD: (PATTERNS["bigbird_etc"], GRID, SMALL),
  "strided": (PATTERNS["strided_merged_paper"], GRID, SMALL),
  "strided per head": (PATTERNS["strided_per_head"], GRID, LARGE),
  "fixed": (PATTERNS["fixed_distinct_summaries"], GRID, SMALL),
  "axial per head": (PATTERNS["axial_per_head"], GRID, SMALL),
  "axial, causal": (Axial(0) & Causal(), TokenLayout((16, 16)), SMALL),
  "neighborhood and a class token": (Neighborhood(5) | Global(prefix=True), GRID, LARGE),
  "random graph": (PATTERNS["erdos_renyi"], GRID, SMALL),
  "some see nothing": (
    MaskFunction(lambda b, h, q, k: (q % 64 < 50) & (k < 90 + h), 4),
    SEQUENCE,
    SMALL,
  ),
  "nothing": (PATTERNS["attention_free"], GRID, SMALL),
}


@pytest.fixture(scope="module", autouse=True)
def products():
  triton_interpreter.multiply_as_a_gpu()


@pytest.fixture
def traced(monkeypatch):
  with lowering_for("gpu"):
    yield triton_interpreter.install(monkeypatch, SMALL)


def attention_along(name, layout=None):
  pattern, layout = CASES[name][0], layout or CASES[name][1]
  mask = ops.dense_mask(pattern, layout, 4)

  def attend(q, k, v, **options):
    return ops.attention(q, k, v, pattern, layout, implementation="kernelized", **options)

  return attend, layout.length, mask


def count_heads(mask):
  """Returns how many heads show a mask: two where all see the same, since each takes its time."""
  return max(2, len(mask))


@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_the_masked_path(name, monkeypatch, traced):
  triton_interpreter.install(monkeypatch, CASES[name][2])
  attend, n, mask = attention_along(name)
  cases.check(attend, cases.inputs(1, n, count_heads(mask), 16), mask=mask, tolerance=2e-6)


def test_hidden_tokens_have_no_gradient(traced):
  attend, n, mask = attention_along("causal window")
  q, k, v, _ = map(jnp.asarray, cases.inputs(1, n, 2, 16))
  dq, dk, dv = jax.grad(lambda *x: jnp.sum(attend(*x)[:, 100]), argnums=(0, 1, 2))(q, k, v)
  hidden = ~mask[0, 100]
  assert not np.any(dk[:, hidden]) and not np.any(dv[:, hidden])
  assert np.all(np.any(dv[:, ~hidden], axis=(0, 2, 3)))
  assert not np.any(np.delete(dq, 100, axis=1))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", ["causal", "neighborhood and a class token", "some see nothing"])
def test_kernels_equal_the_masked_path_in_half_precision(name, dtype, traced):
  attend, n, mask = attention_along(name)
  arrays = cases.inputs(1, n, count_heads(mask), 16, 0, dtype)
  cases.check(attend, arrays, mask=mask, tolerance=2e-2 if dtype == jnp.bfloat16 else 3e-3)


def test_operands_in_registers_are_compensated_for_tf32(monkeypatch):
  """A GPU cuts off bits of both operands of a product, and these errors of one sign add up.

  Without the factor the errors are 1.05e-3, 1.88e-3, 1.88e-3 and 1.24e-3. Exact rounding instead of
  the factor makes them 0.70e-3, 1.01e-3, 1.09e-3 and 0.78e-3.
  """
  attend, n, mask = attention_along("causal window")
  arrays = cases.inputs(2, n, 4, 64)
  triton_interpreter.install(monkeypatch, SMALL, "tf32")
  with lowering_for("gpu"):
    results = cases.program(attend)(*arrays)
  out, _, *gradients = cases.reference(*arrays, mask=mask)
  limits = (8.5e-4, 1.4e-3, 1.4e-3, 1e-3)
  for a, b, most in zip(results, (out, *gradients), limits, strict=True):
    assert 5e-4 < np.linalg.norm(a - b) / np.linalg.norm(b) < most


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of the interpreter
def test_the_factor_for_tf32_keeps_nan(monkeypatch):
  attend, n, _ = attention_along("causal window")
  q, k, v, d_out = cases.inputs(1, n, 2, 16)
  q[0, 70] = np.int32(0x7FFFFFFF).view(np.float32)  # the NaN of a GPU's operations
  triton_interpreter.install(monkeypatch, SMALL, "tf32")
  with lowering_for("gpu"):
    out, dq, _, dv = cases.program(attend)(q, k, v, d_out)
  for x in (out, dq, dv):
    assert np.all(np.isnan(x[0, 70]))
  assert np.all(np.isfinite(np.delete(out, 70, axis=1)))


@pytest.mark.parametrize(("name", "batch", "heads"), [(BIGBIRD, 1, 4), ("causal window", 2, 2)])
def test_a_mask_of_keys_hides_them(name, batch, heads, traced):
  attend, n, mask = attention_along(name)
  seen = cases.seen_keys(batch, n)

  def hide(x):
    return jnp.where(seen[:, :, None, None], x, jnp.nan)

  cases.check(
    lambda q, k, v: attend(q, hide(k), hide(v), key_mask=jnp.asarray(seen)),
    cases.inputs(batch, n, heads, 16),
    mask=mask & seen[:, None, None],
    tolerance=2e-6,
  )
  assert {*traced} == {"forward", "query_gradient", "key_gradients"}


def test_widths_need_not_be_powers_of_two(traced):
  (q, k, _, _), (v, d_out) = cases.inputs(2, 150, 2, 20), cases.inputs(2, 150, 2, 24, 1)[:2]
  mask = block_mask(Causal(), SEQUENCE, 32, 2)
  cases.check(
    lambda q, k, v: block_sparse_attention(q, k, v, mask, scale=0.3),
    (q, k, v, d_out),
    cases.lse_cotangent(2, 150, 2),
    mask=cases.dense_edges(mask)[None],
    scale=0.3,
    tolerance=2e-6,
  )
  assert {*traced} == {"forward", "query_gradient", "key_gradients"}


@pytest.mark.parametrize(("name", "batch"), [("axial per head", 2), (BIGBIRD, 1)])
def test_a_grid_may_have_one_axis(name, batch, monkeypatch, traced):
  monkeypatch.setattr(triton_attention, "MAX_LISTS", 3)
  attend, n, mask = attention_along(name)
  cases.check(attend, cases.inputs(batch, n, 4, 16), mask=mask, tolerance=2e-6)
  assert traced


def drawn_blocks(count, rows, keys, seed=0):
  """Draws the indices of blocks (count, R, K) and which are valid; and their mask (count, R, R)."""
  random = np.random.default_rng(seed)
  indices = np.stack([[random.permutation(rows)[:keys] for _ in range(rows)] for _ in range(count)])
  valid = random.random(indices.shape) < 0.7
  mask = np.zeros((count, rows, rows), bool)
  np.put_along_axis(mask, indices, valid, axis=2)
  return jnp.asarray(indices.astype(np.int32)), jnp.asarray(valid), mask


@pytest.mark.parametrize("block", [9, 16])
def test_each_example_may_choose_its_lists(block, traced):
  rows = -(-75 // block)
  indices, valid, mask = drawn_blocks(4, rows, 3)
  seen = cases.seen_keys(2, 75)
  edges = mask.repeat(block, axis=1).repeat(block, axis=2)[:, :75, :75].reshape(2, 2, 75, 75)
  lists = dict(indices=indices.reshape(2, 2, rows, 3), valid=valid.reshape(2, 2, rows, 3))
  cases.check(
    lambda q, k, v: attend_chosen(q, k, v, block=block, key_mask=jnp.asarray(seen), **lists),
    cases.inputs(2, 75, 2, 16),
    cases.lse_cotangent(2, 75, 2),
    mask=edges & seen[:, None, None],
    tolerance=2e-6,
  )
  assert {*traced} == {"forward", "query_gradient", "key_gradients"}


def gradients(function):
  return jax.grad(lambda q, k, v: jnp.sum(function(q, k, v) ** 2), argnums=(0, 1, 2))


def both_ways(monkeypatch, function, *arrays):
  """Asserts that a function of arrays has equal values with the kernels and with XLA."""
  results = jax.jit(function)(*arrays)
  with monkeypatch.context() as patch:
    patch.setattr(triton_attention, "find_capability", lambda: None)
    expected = jax.jit(lambda *x: function(*x))(*arrays)  # jax keeps the trace of a known function

  def compare(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=5e-6 * max(1.0, float(np.abs(b).max())))

  jax.tree.map(compare, results, expected)


def test_vmap_joins_runs_of_one_program(monkeypatch, traced):
  def attend(q, k, v):
    return ops.attention(q, k, v, PATTERNS["axial_per_head"], SHORT, implementation="kernelized")

  two = [cases.inputs(1, 70, 2, 16, seed)[:3] for seed in (0, 1)]
  q, k, v = (jnp.stack(pair) for pair in zip(*two, strict=True))
  run = jax.vmap(gradients(attend), in_axes=(0, None, 1))
  both_ways(monkeypatch, run, q, k[0], jnp.swapaxes(v, 0, 1))
  assert "query_gradient" in traced


@pytest.mark.parametrize("most", [2**31, 2000])  # elements of an example; two runs have 2,560
def test_vmap_over_lists_makes_heads(most, monkeypatch, traced):
  monkeypatch.setattr(triton_attention, "MAX_ELEMENTS", most)
  indices, valid, _ = drawn_blocks(4, 3, 2)
  lists = indices.reshape(2, 2, 3, 2), valid.reshape(2, 2, 3, 2)
  seen = jnp.asarray(cases.seen_keys(2, 40))
  q, k, v, _ = cases.inputs(2, 40, 2, 16)

  def attend(indices, valid, k):
    def kernel(q, k, v):
      return block_sparse_attention_dynamic(q, k, v, indices, valid, 15, key_mask=seen)[0]

    return gradients(kernel)(q, k, v)

  two = jnp.stack([k, -k])
  both_ways(monkeypatch, jax.vmap(attend), *lists, two)
  if most > 2000:
    both_ways(monkeypatch, jax.vmap(attend), *(x[:, :1] for x in lists), two)  # one list for heads
  assert "key_gradients" in traced


def test_kernels_work_in_loops_and_under_remat(monkeypatch, traced):
  attend, n, _ = attention_along("causal window", SHORT)

  def looped(q, k, v):
    step = jax.checkpoint(lambda x: attend(x, k, v))
    return jax.lax.scan(lambda x, _: (step(x), None), q, None, length=2)[0]

  both_ways(monkeypatch, gradients(looped), *cases.inputs(1, n, 2, 16)[:3])
  assert "query_gradient" in traced


def test_kernels_have_second_derivatives(monkeypatch, traced):
  attend, n, _ = attention_along("causal window", SHORT)
  q, k, v, _ = cases.inputs(1, n, 2, 16)

  def penalty(q, k, v):
    return sum(jnp.sum(x**2) for x in gradients(attend)(q, k, v))

  both_ways(monkeypatch, jax.grad(penalty, argnums=(0, 1, 2)), q, k, v)
  assert "query_gradient" in traced


def test_other_calls_are_computed_by_xla(traced):
  def shape(width=16, dtype=jnp.float32, block=32, kind=jnp.float32):
    mask = block_mask(Causal(), SEQUENCE, block, 1)
    q = jax.ShapeDtypeStruct((1, 150, 1, width), dtype)
    v = jax.ShapeDtypeStruct((1, 150, 1, width), kind)
    jax.eval_shape(lambda q, v: block_sparse_attention(q, q, v, mask), q, v)

  shape(block=64)  # SMALL allows 32 tokens
  shape(dtype=jnp.bfloat16)
  shape(width=129)
  with jax.default_matmul_precision("highest"):
    shape()
  with lowering_for("any"):
    shape()
  assert not traced
  shape()
  assert traced == ["forward"]
