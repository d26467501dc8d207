"""The tile of a pattern is the one of least cost, and no tile changes a result."""

import jax
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx.ops import TokenLayout, dense_mask, plan
from vitx.ops.patterns import (
  PATTERNS,
  DilatedWindow,
  Global,
  Neighborhood,
  ShiftedWindow,
  Window,
  bigbird,
)
from vitx.ops.patterns.parts import Part
from vitx.ops.sparse import tiles
from vitx.ops.sparse.attend import attend, block_mask
from vitx.ops.sparse.block_mask import count_tiles

GRID = TokenLayout((64, 64))
LINE = TokenLayout((4096,))


def chosen(pattern, layout, tile=None):
  """Returns the size of a block and, in a new order, the number and length of its runs."""
  (part,) = plan(pattern, layout, tile).heads[0]
  if part.order is None:
    return part.block, None
  run = int(np.argmax(np.diff(part.order.numbers) != 1)) + 1
  return part.block, (part.block // run, run)


@pytest.mark.parametrize(
  ("pattern", "layout", "expected"),
  [
    (Neighborhood(7), GRID, (16, (4, 4))),  # visits 3.2 % of the matrix; 8 x 8 visits 11.8 %
    (Neighborhood(13), GRID, (64, (8, 8))),  # visits 11.8 %, not 8.8 %, in a twelfth of the tiles
    (Neighborhood(5), TokenLayout((32, 32)), (64, None)),  # two rows are a tile
    (ShiftedWindow(8, 4), GRID, (16, (4, 4))),
    (Window(16), LINE, (16, None)),
    (Window(256), LINE, (64, None)),
    (DilatedWindow(16, (4,)), LINE, (16, (16, 1))),
    (bigbird(block=64, random=3, heads=4), LINE, (64, None)),
    (bigbird(block=16, random=3, heads=4), LINE, (16, None)),
  ],
  ids=str,
)
def test_small_windows_take_small_tiles(pattern, layout, expected):
  assert chosen(pattern, layout) == expected


def test_a_given_tile_is_taken():
  for tile, sides in ((16, (4, 4)), (32, (4, 8)), (64, (8, 8))):
    assert chosen(Neighborhood(7), GRID, tile) == (tile, sides)


@pytest.mark.parametrize("name", ["neighborhood", "bigbird_R+W+G", "shifted_window"])
def test_the_chosen_tile_keeps_the_edges(name):
  pattern, layout = PATTERNS[name], TokenLayout((8, 16), prefix=1)
  arrays = cases.inputs(1, layout.length, 4, 8)[:3]
  results = jax.jit(lambda *x: attend(plan(pattern, layout), *x))(*arrays)
  expected = cases.masked(*arrays, dense_mask(pattern, layout, 4))
  for a, b in zip(results, expected, strict=True):
    np.testing.assert_allclose(a, b, atol=2e-6)


def test_tiles_are_counted_as_they_are_stored():
  layout, compared = TokenLayout((16, 16)), 0
  for name, pattern in PATTERNS.items():
    for part in plan(pattern, layout).heads[0]:
      if part.core == "block_sparse" and part.order is None:
        mask = block_mask(part.pattern, layout, part.block, 4)
        counts = count_tiles(part.pattern, layout, part.block, np.arange(mask.rows))
        np.testing.assert_array_equal(counts, np.diff(mask.offsets)[: mask.rows], name)
        compared += 1
  assert compared > 20


@pytest.mark.parametrize("pattern", [Neighborhood(7), Window(20) | Global(tokens=(0, -1))], ids=str)
def test_some_rows_estimate_the_cost_of_a_long_sequence(pattern, monkeypatch):
  costs = []
  for sample in (tiles.SAMPLE // 2, 1 << 20):
    monkeypatch.setattr(tiles, "SAMPLE", sample)
    heads = ((Part(pattern, "block_sparse", 16),),)
    costs.append(tiles.cost(heads, TokenLayout((96, 96))))
  assert costs[0] == pytest.approx(costs[1], rel=0.1)


def count_elements(pattern, monkeypatch):
  """Returns a list to which each call of `allows` adds the number of its elements."""
  counted, allows = [], type(pattern).allows

  def counting(self, layout, q, k, head=0):
    counted.append(np.broadcast(q, k).size)
    return allows(self, layout, q, k, head)

  monkeypatch.setattr(type(pattern), "allows", counting)
  return counted


@pytest.mark.parametrize(
  "pattern",
  [bigbird(block=64, random=3, heads=4), Neighborhood(7), ShiftedWindow(8, 4), Window(64)],
  ids=str,
)
def test_evaluation_grows_no_faster_than_the_sequence(pattern, monkeypatch):
  """The choice of a tile evaluates some rows, so its work grows more slowly than the sequence."""
  counted, planned, listed = count_elements(pattern, monkeypatch), [], []
  for side in (88, 176):
    counted.clear()
    layout = TokenLayout((side, side))
    (part,) = plan(pattern, layout).heads[0]
    planned.append(sum(counted))
    block_mask(part.pattern, layout, part.block, 4, part.order)
    listed.append(sum(counted) - planned[-1])
  assert 0 < planned[1] < 2 * planned[0] and 0 < listed[1] < 4.4 * listed[0]
