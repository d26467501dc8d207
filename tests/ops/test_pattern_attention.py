"""Attention along a pattern is softmax over its edges, in whatever way it is computed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from tests.slow import all_but
from vitx.config.errors import ConfigError
from vitx.ops import TokenLayout, attention, dense_mask, plan
from vitx.ops.patterns import (
  PATTERNS,
  Axial,
  Causal,
  DilatedWindow,
  Fixed,
  GivenBlocks,
  Global,
  MaskFunction,
  Neighborhood,
  Nothing,
  OnGrid,
  Others,
  Pattern,
  Strided,
  Window,
  bigbird,
  per_head,
  redraw_blocks,
)
from vitx.ops.sparse.attend import attend, block_mask

CLASS = Global(prefix=True)
BIGBIRD = bigbird(block=8, random=2, heads=4)
COMPOSED = [
  per_head(Axial(0), Axial(-1)) | CLASS,  # heads of both kinds interleaved
  per_head(Axial(0), Window(2)) | CLASS,
  Strided(4, "column", "paper"),
  OnGrid(BIGBIRD) | CLASS,
  CLASS | Nothing(),
  Window(1, block=4, count_prefix=True) | CLASS,
  CLASS | Window(2) | Global(tokens=(5,)),
  DilatedWindow(1, (4, 1, 4, 5)) | CLASS,  # 4 does not divide 42 tokens
  (Strided(form="axial") | CLASS) & Causal(),
  per_head(Axial(0), Axial(-1)) & Causal(),
  (OnGrid(BIGBIRD) | CLASS) & Causal(),
  Neighborhood(3) & Causal(),
  (Window(2) | Global(tokens=(5,))) & Causal(),  # a prefix that cannot be attended separately
  per_head(Window(2), Window(4)) & Causal(),
  Others() & Causal(),
  Strided(form="axial") & Others(),  # runs with an order of their own
  Fixed(7, 2) & Others(),  # runs and summaries
  Others() | CLASS,
  "redrawn on the grid",
]


@pytest.mark.parametrize("pattern", all_but(*COMPOSED[::4], of=COMPOSED), ids=str)
def test_attention_along_a_pattern_equals_its_edges(pattern):
  layout = TokenLayout((6, 7), 0 if pattern in COMPOSED[9:16:2] else 2)
  q, k, v, _ = cases.inputs(2, layout.length, 4, 8)
  v = v[..., :5]
  key_mask = cases.seen_keys(2, layout.length, 0.8)

  @jax.jit
  def run(seed, q, k, v, key_mask):
    edges = pattern
    if pattern == "redrawn on the grid":
      edges = redraw_blocks(OnGrid(BIGBIRD), layout, seed) | CLASS
    mask = dense_mask(edges, layout, 4)
    return attend(plan(edges, layout, 8), q, k, v, key_mask=key_mask, scale=0.4), mask

  results, mask = run(np.uint32(3), q, k, v, key_mask)
  expected = cases.masked(q, k, v, np.asarray(mask) & key_mask[:, None, None], 0.4)
  for a, b in zip(results, expected, strict=True):
    np.testing.assert_allclose(a, b, atol=2e-6)


@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
def test_the_op_and_its_gradients_equal_those_of_the_edges(implementation):
  layout, key_mask = TokenLayout((6, 7), 2), cases.seen_keys(2, 44, 0.8)

  def attend(*x):
    options = {"key_mask": key_mask, "scale": 0.4, "causal": True}
    return attention(*x, COMPOSED[1], layout, implementation=implementation, **options)

  mask = dense_mask(COMPOSED[1] & Causal(), layout, 4) & key_mask[:, None, None]
  cases.check(attend, cases.inputs(2, 44, 4, 8), mask=mask, scale=0.4)


@pytest.mark.parametrize("prefix", [0, 1])
def test_block_lists_of_causal_plans_contain_the_edges(prefix):
  """The block lists of parts that keep the order of tokens hold each edge once.

  They leave out the prefix.
  """
  layout, compared = TokenLayout((7, 8), prefix), 0
  for name, pattern in PATTERNS.items():
    steps = plan(pattern & Causal(), layout)
    parts = steps.heads[0]
    if len(steps.heads) == 1 and all(p.core == "block_sparse" and not p.order for p in parts):
      masks = [cases.dense_edges(block_mask(p.pattern, steps.layout, p.block, 4)) for p in parts]
      expected = dense_mask(pattern & Causal(), layout, 4)[:, steps.prefix :, steps.prefix :]
      np.testing.assert_array_equal(sum(m.astype(int) for m in masks), expected, name)
      compared += 1
  assert compared > 20


def test_patterns_over_the_grid_declare_it():
  """A pattern that is `on_grid` has no edges of prefix tokens, and only the grid's own edges."""
  behind, alone, said = TokenLayout((7, 8), 2), TokenLayout((7, 8)), 0
  for name, pattern in PATTERNS.items():
    if pattern.on_grid:
      edges = dense_mask(pattern, behind, 4)
      assert not edges[:, :2].any() and not edges[:, :, :2].any(), name
      np.testing.assert_array_equal(edges[:, 2:, 2:], dense_mask(pattern, alone, 4), name)
      said += 1
  assert said > 20


@pytest.mark.parametrize(
  ("pattern", "cores"),
  [
    (
      per_head(Axial(-1), Axial(0)) | CLASS,
      [["block_diagonal 7"], ["transposed block_diagonal 6"]],
    ),
    (
      Strided(form="axial") | CLASS,
      [["transposed block_diagonal 6", "block_sparse 16"]],
    ),
    (Window(3) | CLASS, [["block_sparse 16"]]),
    (CLASS & Causal(), [["block_sparse 64"]]),
    ((per_head(Axial(0)) | CLASS) & Causal(), [["transposed block_diagonal 6 causal"]]),
  ],
)
def test_columns_are_attended_by_reshaping(pattern, cores):
  steps = plan(pattern, TokenLayout((6, 7), 1))
  assert (steps.prefix, steps.layout) == (1, TokenLayout((6, 7)))

  def describe(part):
    words = (["transposed"] if part.order else []) + [f"{part.core} {part.block}"]
    assert part.order is None or part.order.axes
    return " ".join(words + ["causal"] * part.causal)

  assert [[describe(part) for part in parts] for parts in steps.heads] == cores


def test_a_stride_beyond_the_sequence_pads_nothing():
  layout, pattern = TokenLayout((4, 5)), Strided(10**6, form="code")
  (parts,) = plan(pattern, layout).heads
  assert all(part.order is None for part in parts)
  masks = [cases.dense_edges(block_mask(part.pattern, layout, part.block, 1)) for part in parts]
  np.testing.assert_array_equal(sum(m.astype(int) for m in masks), dense_mask(pattern, layout, 1))


def test_a_plain_function_is_a_pattern():
  """The function has FlexAttention's arguments; heads differ if the function uses `h`."""
  q, k, v, _ = cases.inputs(2, 50, 4, 8)

  def same(b, h, q, k):
    return abs(q - k) <= 3

  def by_head(b, h, q, k):
    return jnp.abs(q - k) <= 2 * h

  @jax.jit
  def run(q, k, v):
    return [
      attention(q, k, v, function, causal=True, implementation=name, tile=16)
      for function in (same, by_head)
      for name in ("masked", "kernelized")
    ]

  i = np.arange(50)
  apart, before = np.abs(i[:, None] - i), np.tri(50, dtype=bool)
  masks = (apart <= 3) & before, (apart <= 2 * np.arange(4)[:, None, None]) & before
  for output, mask in zip(run(q, k, v), (masks[:1] * 2 + masks[1:] * 2), strict=True):
    np.testing.assert_allclose(output, cases.masked(q, k, v, mask)[0], atol=2e-6)
  assert MaskFunction(same, 4).head_period == 1 and MaskFunction(by_head, 4).head_period == 4


@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
def test_edges_of_single_examples_need_vmap_over_blocks(implementation):
  """A function that uses b is refused, however it does; blocks of each example are attended."""
  q, k, v, _ = cases.inputs(2, 16, 2, 8)
  run, lengths = functools.partial(attention, implementation=implementation), np.array([3, 9])
  for function in (
    lambda b, h, i, j: lengths[b] > j,
    lambda b, h, i, j: jnp.asarray(lengths)[b] > j,
    lambda b, h, i, j: lengths.tolist()[b] > j,
    lambda b, h, i, j: (i >= j) | (b == 1),
    lambda b, h, i, j: jnp.where(b, i, j) > 2,
    lambda b, h, i, j: i >= j if b else i <= j,
  ):
    with pytest.raises(ConfigError, match=r"uses b, .* key_mask .*jax\.vmap .*GivenBlocks"):
      jax.eval_shape(lambda *x, f=function: run(*x, f), q, k, v)
  blocks = np.array([[[[0, 1], [1, -1], [2, 3], [3, -1]]], [[[0, -1], [0, 1], [0, 2], [0, 3]]]])
  vmapped = jax.vmap(lambda blocks, *x: run(*(y[None] for y in x), GivenBlocks(blocks, 4))[0])
  masks = [dense_mask(GivenBlocks(x, 4), TokenLayout((16,)), 2) for x in blocks]
  expected = cases.masked(q, k, v, np.stack(masks))[0]
  np.testing.assert_allclose(jax.jit(vmapped)(blocks, q, k, v), expected, atol=2e-6)


@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
@pytest.mark.parametrize("pattern", [Nothing(), Strided(4, "column"), Neighborhood(3)], ids=str)
def test_a_query_without_edges_is_zero_with_zero_gradient(pattern, implementation):
  """Prefix tokens have no edges in these patterns, and in a masked example no token has edges."""
  layout = TokenLayout((4, 4), 2)
  key_mask = np.ones((2, 18), bool)
  key_mask[1] = False

  def attend(*x):
    return attention(*x, pattern, layout, key_mask=key_mask, implementation=implementation)

  for x in cases.program(attend)(*cases.inputs(2, 18, 2, 8)):
    np.testing.assert_array_equal(x[:, :2], 0)
    np.testing.assert_array_equal(x[1], 0)
    assert np.isfinite(x).all()


# Values that a user's functions and patterns read from outside, as in the cells of a notebook.
WIDTH = 2
DOCUMENTS = np.zeros(40, np.int32)


@dataclasses.dataclass(frozen=True)
class Band(Pattern):
  """A user's own pattern: each query attends the keys near it."""

  def allows(self, layout, q, k, head=0):
    return abs(q - k) <= WIDTH


def near(b, h, q_idx, k_idx):
  return abs(q_idx - k_idx) <= WIDTH


def same_document(b, h, q_idx, k_idx):
  return DOCUMENTS[q_idx] == DOCUMENTS[k_idx]


CHANGING = {
  "function": lambda: near,
  "array": lambda: same_document,
  "joined": lambda: Band() | Global(tokens=(0,)),
  "limited": lambda: MaskFunction(near) & Causal(),
  "heads": lambda: per_head(Band(), Window(1)),
  "grid": lambda: OnGrid(Band()) | CLASS,
}


@pytest.mark.parametrize("name", all_but("function", "joined", of=CHANGING))
def test_changed_edges_change_the_result(name, monkeypatch):
  layout = TokenLayout((39,), 1) if name == "grid" else TokenLayout((40,))
  q, k, v, _ = cases.inputs(1, 40, 2, 8)
  edges = CHANGING[name]()
  pattern = edges if isinstance(edges, Pattern) else MaskFunction(edges, 2)
  masks = []
  for width, length in ((2, 20), (9, 8)):
    monkeypatch.setitem(globals(), "WIDTH", width)
    DOCUMENTS[:] = np.arange(40) // length
    masks.append(np.asarray(dense_mask(pattern, layout, 2)))
    run = jax.jit(lambda *x: attention(*x, edges, layout, implementation="kernelized"))
    output = run(q, k, v)
    np.testing.assert_allclose(output, cases.masked(q, k, v, masks[-1])[0], atol=1e-5)
    np.testing.assert_array_equal(cases.dense_edges(block_mask(pattern, layout, 16, 2)), masks[-1])
  assert not np.array_equal(*masks)


def test_plans_of_shipped_patterns_are_cached():
  layout = TokenLayout((40,))
  assert block_mask(Window(3), layout, 16, 2) is block_mask(Window(3), layout, 16, 2)
  assert block_mask(Band(), layout, 16, 2) is block_mask(Band(), layout, 16, 2)
