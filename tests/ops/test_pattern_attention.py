"""Whichever way a pattern is attended along, the result is that of its edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from tests.slow import all_but
from vitx.ops import TokenLayout, attention, dense_mask, plan
from vitx.ops.patterns import (
  PATTERNS,
  Axial,
  Causal,
  DilatedWindow,
  Global,
  MaskFunction,
  Neighborhood,
  Nothing,
  OnGrid,
  Strided,
  Window,
  bigbird,
  per_head,
  redraw_blocks,
)
from vitx.ops.sparse.attend import attend

CLASS = Global(prefix=True)
BIGBIRD = bigbird(block=8, random=2, heads=4)
QUICK = {"xla_backend_optimization_level": 0}


COMPOSED = [
  per_head(Axial(0), Axial(-1)) | CLASS,  # heads of both kinds interleaved
  per_head(Axial(0), Window(2)) | CLASS,
  Strided(form="axial") | CLASS,
  Strided(4, "column", "paper"),
  OnGrid(BIGBIRD) | CLASS,
  OnGrid(Strided(form="bidirectional")),
  CLASS | Nothing(),
  Window(1, block=4, count_prefix=True) | CLASS,
  CLASS | Window(2) | Global(tokens=(5,)),
  DilatedWindow(2, (3,)),  # 42 tokens, not without a rest of 4
  DilatedWindow(1, (4, 1, 4, 5)) | CLASS,
  (Strided(form="axial") | CLASS) & Causal(),
  per_head(Axial(0), Axial(-1)) & Causal(),
  (OnGrid(BIGBIRD) | CLASS) & Causal(),
  Neighborhood(3) & Causal(),
  Causal() & Window(3),
  "redrawn",
  "redrawn on the grid",
]


@pytest.mark.parametrize("prefix", all_but(2, of=(0, 2)))
@pytest.mark.parametrize("pattern", all_but(*COMPOSED[::2], of=COMPOSED), ids=str)
def test_equals_its_edges(pattern, prefix):
  layout = TokenLayout((6, 7), prefix)
  q, k, v, _ = cases.inputs(2, layout.length, 4, 8)
  v = v[..., :5]
  key_mask = jax.random.bernoulli(jax.random.key(7), 0.8, (2, layout.length))

  def run(seed):
    edges = pattern
    if pattern == "redrawn":
      edges = redraw_blocks(BIGBIRD, layout, seed)
    elif pattern == "redrawn on the grid":
      edges = redraw_blocks(OnGrid(BIGBIRD), layout, seed) | CLASS
    mask = dense_mask(edges, layout, 4)
    return attend(plan(edges, layout, 8), q, k, v, key_mask=key_mask, scale=0.4), mask

  found, mask = jax.jit(run, compiler_options=QUICK)(np.uint32(3))
  expected = cases.masked(q, k, v, mask[None] & key_mask[:, None, None], 0.4)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, atol=2e-6)


def test_patterns_over_the_grid_say_so():
  """`on_grid`: no edges of prefix tokens, and the edges of the grid alone."""
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


def test_a_plain_function_is_a_pattern():
  """As FlexAttention takes it; heads are told apart where the function uses them."""
  q, k, v, _ = cases.inputs(2, 50, 4, 8)

  def same(b, h, q, k):
    return abs(q - k) <= 3

  def by_head(b, h, q, k):
    return jnp.abs(q - k) <= 2 * h

  @jax.jit
  def run(q, k, v):
    return [
      attention(q, k, v, function, causal=True, implementation=name, tile=16)[0]
      for function in (same, by_head)
      for name in ("masked", "kernelized")
    ]

  found = run(q, k, v)
  for a, b in (found[:2], found[2:]):
    np.testing.assert_allclose(a, b, atol=2e-6)
  i = np.arange(50)
  mask = (np.abs(i[:, None] - i) <= 2 * np.arange(4)[:, None, None]) & np.tri(50, dtype=bool)
  np.testing.assert_allclose(found[2], cases.masked(q, k, v, mask[None])[0], atol=2e-6)
  assert MaskFunction(same, 4).head_period == 1 and MaskFunction(by_head, 4).head_period == 4


@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
@pytest.mark.parametrize(
  "pattern", [Nothing(), Strided(4, "column"), Neighborhood(3), Window(2, block=4)], ids=str
)
def test_a_query_without_edges_is_zero_with_zero_gradient(pattern, implementation):
  """Prefix tokens have no edges in these patterns, nor has any token of an example all masked."""
  layout = TokenLayout((4, 4), 2)
  q, k, v, d_out = cases.inputs(2, 18, 2, 8)
  key_mask = np.ones((2, 18), bool)
  key_mask[1] = False

  @jax.jit
  def run(*x):
    out, pull = jax.vjp(
      lambda *x: attention(*x, pattern, layout, key_mask=key_mask, implementation=implementation)[
        0
      ],
      *x,
    )
    return out, pull(d_out)

  out, grads = run(q, k, v)
  for x in (out, *grads):
    np.testing.assert_array_equal(x[:, :2], 0)
    np.testing.assert_array_equal(x[1], 0)
    assert np.isfinite(x).all()
