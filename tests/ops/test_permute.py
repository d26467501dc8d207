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
  Neighborhood,
  Order,
  Pattern,
  ShiftedWindow,
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


ORDERS = {
  "patches": patches((4, 6), 6)[1],
  "columns": Order(np.arange(24).reshape(4, 6).T.ravel(), 24),
  "padded columns": Order(np.arange(24).reshape(4, 6).T.ravel(), 21),
  "three axes": Order(np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1).ravel(), 24),
  "any": Order(np.random.default_rng(0).permutation(24), 24),
  "padded, any": Order(np.random.default_rng(0).permutation(24), 22),
}


@pytest.mark.parametrize("name", ORDERS)
def test_restoring_undoes_permuting(name):
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
def test_reordered_tokens_have_equal_edges(pattern, grid, tile):
  layout = TokenLayout(grid)
  block, order = patches(grid, tile)
  expected = dense_mask(pattern, layout, 1)[:, order.numbers][:, :, order.numbers]
  mask = block_mask(pattern, layout, block, 1, order)
  np.testing.assert_array_equal(cases.dense_edges(mask), expected)


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
def test_a_pattern_may_define_its_permutation(gathered, causal):
  layout, pattern = TokenLayout((6, 8)), Opposite(gathered)
  (part,) = plan(pattern & Causal() if causal else pattern, layout, 24).heads[0]
  assert block_mask(part.pattern, layout, 24, 1, part.order).keys.size == 2  # in the usual order, 4
  mask = dense_mask(pattern, layout, 2)[None]
  mask = mask & np.tri(48, dtype=bool) if causal else mask
  steps = plan(pattern & Causal() if causal else pattern, layout, 24)
  cases.check(lambda *x: attend(steps, *x), cases.inputs(2, 48, 2, 8), mask=mask)
