"""Whichever way a pattern is attended along, the result is that of its edges."""

import jax
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import (
  PATTERNS,
  Axial,
  Global,
  Nothing,
  OnGrid,
  Strided,
  Window,
  bigbird,
  per_head,
  redrawn,
)
from vitx.ops.sparse import pattern_attention
from vitx.ops.sparse.pattern_attention import dense_mask, sparse_pattern_attention

CLASS = Global(prefix=True)
BIGBIRD = bigbird(block=8, random=2, heads=4)
QUICK = {"xla_backend_optimization_level": 0}


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize(
  "pattern",
  [
    per_head(Axial(0), Axial(-1)) | CLASS,  # heads of both kinds interleaved
    per_head(Axial(0), Window(2)) | CLASS,
    Strided(form="axial") | CLASS,
    Strided(4, "column", "paper"),
    OnGrid(BIGBIRD) | CLASS,
    OnGrid(Strided(form="bidirectional")),
    CLASS | Nothing(),
    Window(1, block=4, count_prefix=True) | CLASS,
    CLASS | Window(2) | Global(tokens=(5,)),
    "redrawn",
    "redrawn on the grid",
  ],
  ids=str,
)
def test_equals_its_edges(pattern, prefix):
  layout = TokenLayout((6, 7), prefix)
  q, k, v, _ = cases.inputs(2, layout.length, 4, 8)
  v = v[..., :5]
  key_mask = jax.random.bernoulli(jax.random.key(7), 0.8, (2, layout.length))

  def run(seed):
    edges = pattern
    if pattern == "redrawn":
      edges = redrawn(BIGBIRD, layout, seed)
    elif pattern == "redrawn on the grid":
      edges = redrawn(OnGrid(BIGBIRD), layout, seed) | CLASS
    given = {"tile": 8, "key_mask": key_mask, "scale": 0.4}
    mask = dense_mask(edges, layout, 4)
    return sparse_pattern_attention(q, k, v, edges, layout, **given), mask

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
  ("pattern", "parts"),
  [
    (per_head(Axial(-1), Axial(0)) | CLASS, {"local", "column"}),
    (Strided(form="axial") | CLASS, {"merged"}),
    (Window(3) | CLASS, set()),
  ],
)
def test_columns_are_attended_by_reshaping(pattern, parts, monkeypatch):
  used = set()
  strided = pattern_attention.strided_attention

  def recorded(*args, **settings):
    used.add(settings["part"])
    return strided(*args, **settings)

  monkeypatch.setattr(pattern_attention, "strided_attention", recorded)
  layout = TokenLayout((6, 7), 1)
  array = jax.ShapeDtypeStruct((1, layout.length, 2, 4), np.float32)
  jax.eval_shape(lambda *x: sparse_pattern_attention(*x, pattern, layout), *[array] * 3)
  assert used == parts
