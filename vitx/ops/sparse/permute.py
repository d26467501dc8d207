"""Attention to what is near on a grid, by tiles that are short in both directions.

In row-major order a tile is a piece of a row, and what is near its tokens lies in pieces of many
rows. Renumbered patch by patch, a tile is a patch, and what is near it lies in the patches around.
"""

import dataclasses

import jax
import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Neighborhood, Pattern, ShiftedWindow

NEAR = (Neighborhood, ShiftedWindow)


def patch_sides(pattern: Pattern, layout: TokenLayout, tile: int) -> tuple[int, int] | None:
  """The patch by which to renumber: at most `tile` tokens, as square as they come.

  Returns:
    None if that would not help: the pattern is none of `NEAR` on a plane without prefix, or the
    grid's sides have no divisors that make a patch of at least half of `tile`.
  """
  if not isinstance(pattern, NEAR) or layout.prefix or len(layout.grid) != 2:
    return None
  sides = [
    (a, b)
    for a in range(1, tile + 1)
    for b in range(1, tile // a + 1)
    if layout.grid[0] % a == 0 and layout.grid[1] % b == 0
  ]
  a, b = max(sides, key=lambda sides: (sides[0] * sides[1], -abs(sides[0] - sides[1])))
  return (a, b) if 2 * a * b >= tile else None


@dataclasses.dataclass(frozen=True)
class ByPatches(Pattern):
  """A pattern's edges between tokens that are numbered patch by patch.

  Attributes:
    pattern: over a grid that `sides` divide.
    sides: of a patch; its tokens are a block.
  """

  pattern: Pattern
  sides: tuple[int, int]

  @property
  def head_period(self) -> int:
    return self.pattern.head_period

  def allows(self, layout, q, k, head=0):
    return self.pattern.allows(layout, self._token(layout, q), self._token(layout, k), head)

  def candidates(self, layout, first, last, block, head):
    height, width = self.sides
    across = layout.grid[1] // width
    found = []
    for row in range(height):  # a run of `width` tokens of the grid's row
      start = int(self._token(layout, first + row * width))
      runs = self.pattern.candidates(layout, start, start + width - 1, width, head)
      found.append(runs // across // height * across + runs % across)
    return np.unique(np.concatenate(found))

  def _token(self, layout: TokenLayout, index):
    """The row-major number of a token."""
    height, width = self.sides
    across = layout.grid[1] // width
    patch, inside = index // (height * width), index % (height * width)
    row = patch // across * height + inside // width
    return row * layout.grid[1] + patch % across * width + inside % width


def to_patches(x: jax.Array, layout: TokenLayout, sides: tuple[int, int]) -> jax.Array:
  """(B, N, ...) renumbered patch by patch."""
  (rows, columns), (a, b) = layout.grid, sides
  split = x.reshape(x.shape[0], rows // a, a, columns // b, b, *x.shape[2:])
  return split.swapaxes(2, 3).reshape(x.shape)


def from_patches(x: jax.Array, layout: TokenLayout, sides: tuple[int, int]) -> jax.Array:
  """The way back."""
  (rows, columns), (a, b) = layout.grid, sides
  split = x.reshape(x.shape[0], rows // a, columns // b, a, b, *x.shape[2:])
  return split.swapaxes(2, 3).reshape(x.shape)
