"""The parts of attention around the GPU's kernels, without Triton: lists, tiles, messages."""

import importlib.metadata
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from tests.ops.lowered import record_kernels
from vitx import ops
from vitx.ops.implementation import lowering_for
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import PATTERNS, Axial, Causal, Others
from vitx.ops.sparse import triton_attention
from vitx.ops.sparse.attend import block_mask
from vitx.ops.sparse.chosen_blocks import attend_chosen
from vitx.ops.sparse.plan import plan
from vitx.ops.sparse.triton_lists import Lists, list_blocks, list_drawn

GRID = TokenLayout((11, 13), prefix=1)


def read(lists, heads, groups, rows, n, block):
  """Returns the edges, bool (G, N, N), of block lists, read in the way of the kernels."""
  edges = np.zeros((heads, groups * rows, -(-n // block) * block), bool)
  assert sorted(lists.order) == list(range(heads * groups))
  lengths = (lists.bounds[:, 2] - lists.bounds[:, 0])[lists.order]
  assert np.all(np.diff(lengths) <= 0)
  for group, (start, middle, end) in enumerate(lists.bounds):
    part = edges[group // groups, group % groups * rows :][:rows]
    for i in range(start, end):
      columns = slice(lists.others[i] * block, (lists.others[i] + 1) * block)
      assert not part[:, columns].any()
      part[:, columns] = True
      if i < middle:
        bits = lists.tables[lists.numbers[i]].view(np.uint32)
        shifted = bits[:, :, None] >> np.arange(32, dtype=np.uint32)
        part[:, columns] = (shifted & 1).astype(bool).reshape(rows, -1)[:, :block]
  return edges[:, :n, :n]


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("name", ["full", "bigbird_etc", "axial_per_head", "attention_free"])
def test_lists_contain_the_edges(name, blocks):
  mask = block_mask(PATTERNS[name], GRID, 16, 4)
  for transposed, expected in enumerate((mask, mask.transpose())):
    lists = list_blocks(mask, blocks, bool(transposed))
    tables = lists.tables.reshape(-1, blocks * 16, 1)
    lists = Lists(lists.order, lists.bounds, lists.others, lists.numbers, tables)
    groups = -(-mask.rows // blocks)
    edges = read(lists, mask.heads, groups, blocks * 16, GRID.length, 16)
    np.testing.assert_array_equal(edges, cases.dense_edges(expected))


def test_lists_made_at_run_time_contain_the_blocks():
  random = np.random.default_rng(0)
  indices = np.stack([[random.permutation(7)[:4] for _ in range(7)] for _ in range(2)])
  valid = random.random(indices.shape) < 0.6
  expected = np.zeros((2, 7, 7), bool)
  np.put_along_axis(expected, indices, valid, axis=2)
  for transposed in (False, True):
    lists = jax.jit(list_drawn, static_argnums=2)(indices, valid, transposed)
    edges = read(Lists(*map(np.asarray, lists)), 2, 7, 1, 7, 1)
    np.testing.assert_array_equal(edges, expected.swapaxes(1, 2) if transposed else expected)


@pytest.mark.parametrize("name", ["strided_per_head", "neighborhood_dilated", "fixed_and_class"])
def test_a_plan_for_the_kernel_has_blocks_of_its_size(name):
  parts = [part for head in plan(PATTERNS[name], GRID, most=32).heads for part in head]
  assert {part.core for part in parts} <= {"block_sparse", "summaries"}
  assert {part.block for part in parts if part.core == "block_sparse"} == {32}
  parts = [part for head in plan(PATTERNS[name], GRID, 16, most=32).heads for part in head]
  assert {part.block for part in parts if part.core == "block_sparse"} == {16}


@pytest.mark.parametrize("limit", [Causal(), Others()])
def test_a_plan_for_the_kernel_keeps_the_limits_of_reordered_tokens(limit):
  layout, pattern = TokenLayout((16, 16)), Axial(0) & limit
  ((part,),) = plan(pattern, layout, most=32).heads
  places = part.order.places
  edges = cases.dense_edges(block_mask(part.pattern, layout, part.block, 1, part.order))[0]
  edges = edges[np.ix_(places, places)]
  np.testing.assert_array_equal(edges, ops.dense_mask(pattern, layout, 1)[0])


def test_a_large_batch_of_lists_made_at_run_time_has_programs_on_one_axis(monkeypatch):
  """CUDA starts up to 2³¹ - 1 programs along the first axis, and 65,535 along the others."""
  calls = record_kernels(monkeypatch)
  q = jax.ShapeDtypeStruct((256, 1024, 8, 16), jnp.bfloat16)
  lists = jax.ShapeDtypeStruct((256, 8, 64, 4), jnp.int32)

  def loss(q, indices):
    return attend_chosen(q, q, q, indices=indices, valid=indices >= 0, block=16)[1].sum()

  with lowering_for("gpu"):
    jax.eval_shape(jax.grad(loss), q, lists)
  assert [grid for _, _, grid, *_ in calls] == [(256 * 8 * 64, 1)] * 3


def test_results_vary_over_a_mesh_as_the_inputs_do(monkeypatch):
  calls, spec = record_kernels(monkeypatch), jax.sharding.PartitionSpec("data")
  mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

  def differentiate(q, k):
    def loss(q, k):
      out = ops.attention(q, k, k, PATTERNS["window"], implementation="kernelized")
      return jnp.sum(out**2)

    return jax.grad(loss, argnums=(0, 1))(q, k)

  x = jax.ShapeDtypeStruct((2, 40, 1, 16), jnp.float32)
  with lowering_for("gpu"):
    shared = jax.shard_map(differentiate, mesh=mesh, in_specs=spec, out_specs=spec)
    assert jax.eval_shape(shared, x, x) == (x, x)
  assert len(calls) == 3


def test_arrays_without_elements_work(monkeypatch):
  calls, extra = record_kernels(monkeypatch), dict(scale=np.float32(2), implementation="kernelized")
  for batch in (0, 1):
    x = jax.ShapeDtypeStruct((batch, 40, 1, 16), jnp.float32)
    with lowering_for("gpu"):
      jax.eval_shape(lambda x: ops.attention(x, x, x, PATTERNS["window"], **extra), x)
  assert [type(sizes.scale) for *_, sizes in calls] == [float]


@pytest.mark.parametrize(
  ("capability", "error", "reason"),
  [
    ("7.5", None, "the compute capability is 7.5, and the kernels need 8.0"),
    ("9.0", ModuleNotFoundError("no", name="jax_triton"), "jax-triton is missing; on Python 3.12"),
    (
      "9.0",
      ValueError("at 3:5:\nno"),
      "triton 1.0 do not fit each other (ValueError: at 3:5: no);",
    ),
    ("9.0", None, None),
    ("gfx942", None, None),
  ],
)
def test_an_obstacle_names_its_remedy(capability, error, reason, monkeypatch):
  def lower(_):
    if error:
      raise error

  gpu = types.SimpleNamespace(platform="gpu", compute_capability=capability)
  monkeypatch.setattr(jax, "devices", lambda: [gpu])
  monkeypatch.setattr(importlib.metadata, "version", lambda package: "1.0")
  monkeypatch.setitem(sys.modules, "jax_triton", types.ModuleType("jax_triton"))
  monkeypatch.setattr(triton_attention, "_lower_a_call", lower)
  obstacle = triton_attention.find_obstacle.__wrapped__()
  assert obstacle is None if reason is None else reason in obstacle
