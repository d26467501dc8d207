"""Tiles by patches: another numbering of the same edges."""

import jax
import numpy as np
import pytest

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Neighborhood, ShiftedWindow, Window
from vitx.ops.sparse.block_mask import BlockMask
from vitx.ops.sparse.pattern_attention import (
  dense_mask,
  masked_pattern_attention,
  sparse_pattern_attention,
)
from vitx.ops.sparse.permute import ByPatches, from_patches, patch_sides, to_patches

PATTERNS = [Neighborhood(3), Neighborhood((5, 2)), ShiftedWindow(3, 1), ShiftedWindow(4)]


@pytest.mark.parametrize(
  ("grid", "tile", "sides"),
  [
    ((8, 8), 16, (4, 4)),
    ((14, 14), 64, (7, 7)),
    ((8, 16), 32, (4, 8)),
    ((7, 7), 16, None),  # a row of 7 is less than half a tile
    ((64,), 16, None),
  ],
)
def test_patches_divide_the_grid(grid, tile, sides):
  assert patch_sides(Neighborhood(3), TokenLayout(grid), tile) == sides


def test_only_what_is_near_on_a_plane_is_renumbered():
  assert patch_sides(Window(1, block=4), TokenLayout((8, 8)), 16) is None
  assert patch_sides(Neighborhood(3), TokenLayout((8, 8), prefix=1), 16) is None


def test_there_and_back():
  layout, x = TokenLayout((4, 6)), np.arange(2 * 24 * 3).reshape(2, 24, 3)
  moved = to_patches(jax.numpy.asarray(x), layout, (2, 3))
  np.testing.assert_array_equal(from_patches(moved, layout, (2, 3)), x)
  first = [0, 1, 2, 6, 7, 8]  # the patch in the corner
  np.testing.assert_array_equal(moved[:, :6], x[:, first])


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize(("grid", "sides"), [((8, 12), (4, 4)), ((6, 6), (2, 3)), ((5, 8), (5, 2))])
def test_the_same_edges(pattern, grid, sides):
  layout = TokenLayout(grid)
  number = to_patches(np.arange(layout.length)[None], layout, sides)[0]
  expected = dense_mask(pattern, layout, 1)[:, number][:, :, number]
  found = BlockMask.from_pattern(ByPatches(pattern, sides), layout, sides[0] * sides[1], 1)
  np.testing.assert_array_equal(found.dense(), expected)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_and_lse(masked):
  layout, pattern = TokenLayout((8, 8)), Neighborhood(5)
  q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 64, 2, 4))
  seen = jax.random.bernoulli(jax.random.key(1), 0.7, (2, 64)) if masked else None
  out, lse = sparse_pattern_attention(q, k, v, pattern, layout, tile=16, key_mask=seen)
  rows = sparse_pattern_attention(q, k, v, pattern, layout, tile=7, key_mask=seen)
  expected, _ = masked_pattern_attention(q, k, v, pattern, layout, key_mask=seen)
  np.testing.assert_allclose(out, expected, atol=2e-6)
  np.testing.assert_allclose(out, rows[0], atol=2e-6)
  np.testing.assert_allclose(lse, rows[1], atol=2e-6)


def test_fewer_elements_than_tiles_of_rows():
  layout, pattern = TokenLayout((64, 64)), Neighborhood(7)
  patches = BlockMask.from_pattern(ByPatches(pattern, (4, 4)), layout, 16, 1)
  rows = BlockMask.from_pattern(pattern, layout, 16, 1)
  assert 2 * patches.keys.size < rows.keys.size
