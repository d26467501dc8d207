"""Attention in another order of the tokens has equal edges, and gathers only if it must."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx.ops import TokenLayout, dense_mask, plan
from vitx.ops.patterns import (
  Causal,
  DilatedWindow,
  Neighborhood,
  Order,
  Pattern,
  ShiftedWindow,
  Window,
  coordinates,
)
from vitx.ops.patterns.grid import patches
from vitx.ops.sparse.attend import attend, block_mask
from vitx.ops.sparse.permute import permute, restore

PATTERNS = [Neighborhood(3), Neighborhood((5, 2)), ShiftedWindow(3, 1), ShiftedWindow(4)]


@pytest.mark.parametrize(
  ("grid", "tile", "size"),
  [
    ((8, 8), 16, 16),
    ((14, 14), 64, 49),
    ((8, 16), 32, 32),
    ((7, 7), 16, None),  # a row of 7 is less than half a tile
    ((64,), 16, None),
  ],
)
def test_patches_divide_the_grid(grid, tile, size):
  block, order = patches(grid, tile)
  assert (block, order is None) == ((tile, True) if size is None else (size, False))


def test_only_what_is_near_on_a_plane_is_renumbered():
  assert patches((8, 8), 16)[1] is not None
  for pattern, layout in ((Window(1, block=4), TokenLayout((8, 8))), (Neighborhood(3), (64,))):
    layout = layout if isinstance(layout, TokenLayout) else TokenLayout(layout)
    (part,) = plan(pattern, layout, 16).heads[0]
    assert part.order is None


ORDERS = {
  "patches": patches((4, 6), 6)[1],
  "columns": Order(np.arange(24).reshape(4, 6).T.ravel(), 24),
  "padded columns": Order(np.arange(24).reshape(4, 6).T.ravel(), 21),
  "three axes": Order(np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1).ravel(), 24),
  "any": Order(np.random.default_rng(0).permutation(24), 24),
  "padded, any": Order(np.random.default_rng(0).permutation(24), 22),
}


@pytest.mark.parametrize("name", ORDERS)
def test_there_and_back(name):
  order = ORDERS[name]
  x = np.arange(1, 1 + 2 * order.length * 3).reshape(2, order.length, 3).astype(np.float32)
  weight = np.random.default_rng(1).normal(size=(2, order.numbers.size, 3)).astype(np.float32)

  @jax.jit
  def run(x, weight):
    moved, pull = jax.vjp(lambda x: permute(x, order), x)
    return moved, restore(moved, order), pull(weight)[0], restore(weight, order)

  moved, back, grad, restored = map(np.asarray, run(x, weight))
  inside = order.numbers < order.length
  np.testing.assert_array_equal(moved[:, inside], x[:, order.numbers[inside]])
  np.testing.assert_array_equal(moved[:, ~inside], 0)
  np.testing.assert_array_equal(back, x)
  np.testing.assert_array_equal(grad, restored)
  assert (order.axes is None) == ("any" in name)


@pytest.mark.parametrize("name", ORDERS)
def test_a_transposition_gathers_nothing_and_no_order_scatters(name):
  order = ORDERS[name]
  x = jax.ShapeDtypeStruct((2, order.length, 3), np.float32)
  program = str(jax.make_jaxpr(jax.grad(lambda x: jnp.sum(jnp.sin(permute(x, order)))))(x))
  assert "scatter" not in program
  assert ("gather" in program) == (order.axes is None)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize(("grid", "tile"), [((8, 12), 16), ((6, 6), 6), ((5, 8), 10)])
def test_the_same_edges(pattern, grid, tile):
  layout = TokenLayout(grid)
  block, order = patches(grid, tile)
  expected = dense_mask(pattern, layout, 1)[:, order.numbers][:, :, order.numbers]
  found = block_mask(pattern, layout, block, 1, order)
  np.testing.assert_array_equal(found.dense(), expected)


def test_fewer_elements_than_tiles_of_rows():
  layout, pattern = TokenLayout((64, 64)), Neighborhood(7)
  by_patches = block_mask(pattern, layout, 16, 1, patches((64, 64), 16)[1])
  rows = block_mask(pattern, layout, 16, 1)
  assert 2 * by_patches.keys.size < rows.keys.size


def test_a_dilated_window_is_a_window_among_every_dth_token():
  layout = TokenLayout((1024,))
  (part,) = plan(DilatedWindow(4, (16,)), layout, 16).heads[0]
  assert part.order.axes == ((64, 16), (1, 0))
  permuted = block_mask(part.pattern, layout, 16, 1, part.order)
  assert 2 * permuted.keys.size < block_mask(part.pattern, layout, 16, 1).keys.size


@dataclasses.dataclass(frozen=True)
class Opposite(Pattern):
  """A user's own pattern: a token attends the tokens in rows of equal parity.

  Attributes:
    gathered: Whether the permutation needs a gather, since no transposition makes its order.
  """

  gathered: bool = False

  def allows(self, layout, q, k, head=0):
    (row, _), (other, _) = coordinates(layout, q), coordinates(layout, k)
    return row % 2 == other % 2

  def permutation(self, layout):
    rows, columns = layout.grid
    numbers = np.arange(layout.length).reshape(rows, columns)
    if self.gathered:
      return np.concatenate([numbers[1::2, ::-1].ravel(), numbers[::2].ravel()])
    return np.concatenate([numbers[::2].ravel(), numbers[1::2].ravel()])


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_pattern_with_a_permutation_of_its_own(gathered, causal):
  layout, pattern = TokenLayout((6, 8)), Opposite(gathered)
  (part,) = plan(pattern & Causal() if causal else pattern, layout, 24).heads[0]
  assert block_mask(part.pattern, layout, 24, 1, part.order).keys.size == 2  # in the usual order, 4
  mask = dense_mask(pattern, layout, 2)[None]
  mask = mask & np.tri(48, dtype=bool) if causal else mask
  steps = plan(pattern & Causal() if causal else pattern, layout, 24)
  cases.check(lambda *x: attend(steps, *x), cases.inputs(2, 48, 2, 8), mask=mask)
