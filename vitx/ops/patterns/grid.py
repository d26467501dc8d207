"""Patterns over the coordinates of a grid; in all of them prefix tokens have no edges."""

import dataclasses
import functools
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Pattern
from vitx.ops.patterns.indices import (
  Blocks,
  Index,
  blocks_between,
  blocks_of_runs,
  coordinates,
  distinct,
  in_grid,
  namespace,
)
from vitx.ops.patterns.parts import Order, Part, as_order

Sizes = int | tuple[int, ...]
Corners = tuple[list[int], list[int]]  # the lowest and the highest coordinates of a box


def _per_axis(value: Sizes, layout: TokenLayout, field: str, least: int) -> tuple[int, ...]:
  values = (value,) * len(layout.grid) if isinstance(value, int) else tuple(value)
  if len(values) != len(layout.grid) or min(values) < least:
    raise ConfigError(f"{field}={value} does not fit a grid of {layout.grid}.")
  return values


def _rows_of_box(layout: TokenLayout, low: list[int], high: list[int], block: int) -> np.ndarray:
  """Returns the key blocks that contain the grid points in the box `low ... high`, inclusive."""
  if any(a > b for a, b in zip(low, high, strict=True)):
    return np.arange(0)
  rows = np.zeros(1, np.int64)
  for extent, a, b in zip(layout.grid, low[:-1], high[:-1], strict=False):
    rows = (rows[:, None] * extent + np.arange(a, b + 1)).ravel()
  first = layout.prefix + rows * layout.grid[-1] + low[-1]
  last = (first + high[-1] - low[-1]) // block
  first = first // block
  blocks = first[:, None] + np.arange(int((last - first).max()) + 1)
  return distinct([blocks[blocks <= last[:, None]]])


def _box_of(layout: TokenLayout, first: int, last: int) -> Corners:
  """Returns a box around the grid points of tokens `first ... last`, not always the smallest."""
  low = [int(c) for c in coordinates(layout, first)]
  high = [int(c) for c in coordinates(layout, last)]
  split = next((axis for axis, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), None)
  if split is not None:  # after the first axis on which the ends differ, all coordinates occur
    for axis in range(split + 1, len(low)):
      low[axis], high[axis] = 0, layout.grid[axis] - 1
  return low, high


@functools.lru_cache(maxsize=64)
def patches(grid: tuple[int, ...], tile: int) -> tuple[int, Order | None]:
  """Returns an order of the tokens of a 2-D grid, patch by patch.

  In row-major order, a tile is a piece of a row, and the neighbors of its tokens are spread over
  pieces of many rows. In patch order, a tile is a patch, and the neighbors are in the surrounding
  patches.

  Args:
    grid: The extents of the grid.
    tile: The largest number of tokens in a patch; patches are as square as possible.

  Returns:
    The number of tokens in a patch and the order. These are `tile` and `None` if the grid is not
    2-D, or if its sides have no divisors that make a patch of at least `tile / 2` tokens.
  """
  if len(grid) != 2:
    return tile, None
  sides = [
    (a, b)
    for a in range(1, tile + 1)
    for b in range(1, tile // a + 1)
    if grid[0] % a == 0 and grid[1] % b == 0
  ]
  a, b = max(sides, key=lambda sides: (sides[0] * sides[1], -abs(sides[0] - sides[1])))
  if 2 * a * b < tile:
    return tile, None
  split = np.arange(grid[0] * grid[1]).reshape(grid[0] // a, a, grid[1] // b, b)
  return a * b, as_order(split.swapaxes(1, 2).ravel(), split.size)


@dataclasses.dataclass(frozen=True)
class Near(Pattern):
  """The base class of patterns whose edges join tokens that are near each other on the grid.

  For such patterns it is efficient to order the tokens patch by patch.
  """

  on_grid = True

  def reach(self, layout: TokenLayout, low: list[int], high: list[int]) -> Corners:
    """Returns the inclusive corners of a box that contains all keys of the queries in a given box.

    Args:
      layout: The layout of the N tokens.
      low, high: The corners of the queries' box, inclusive.
    """
    raise NotImplementedError

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    first = max(first, layout.prefix)
    if last < first:
      return np.arange(0)
    return _rows_of_box(layout, *self.reach(layout, *_box_of(layout, first, last)), block)

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    if layout.prefix:
      return super().split(layout, tile)
    block, order = patches(layout.grid, tile)
    return (Part(self, "block_sparse", block, order),)


@dataclasses.dataclass(frozen=True)
class Axial(Pattern):
  """Attention between tokens that differ at most in one coordinate (Ho et al. 2019, section 3).

  Attributes:
    axis: The axis of the coordinate that may differ. In an image, -1 means the query's row, and 0
      its column.
  """

  on_grid = True

  axis: int = -1

  def _attended_axis(self, layout: TokenLayout) -> int:
    """Returns the axis, counted from 0."""
    return range(len(layout.grid))[self.axis]

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    edges, attended = in_grid(layout, q, k), self._attended_axis(layout)
    pairs = zip(coordinates(layout, q), coordinates(layout, k), strict=True)
    for axis, (i, j) in enumerate(pairs):
      if axis != attended:
        edges = edges & (i == j)
    return edges

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    first, axis = max(first, layout.prefix), self._attended_axis(layout)
    if last < first:
      return np.arange(0)
    step = int(np.prod(layout.grid[axis + 1 :]))
    length = step * layout.grid[axis]
    # A line along the axis is part of one run of `length` tokens; its tokens are `step` apart.
    run = (first - layout.prefix) // length, (last - layout.prefix) // length
    start, end = layout.prefix + run[0] * length, layout.prefix + (run[1] + 1) * length - 1
    if step <= block or run[0] != run[1]:
      return blocks_between(start, end, block, layout.length)
    shifts = np.arange(-layout.grid[axis], layout.grid[axis] + 1) * step
    return blocks_of_runs(first + shifts, last + shifts, block, layout.length)

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    if layout.prefix:
      return super().split(layout, tile)
    axis = self._attended_axis(layout)
    lines = np.moveaxis(np.arange(layout.length).reshape(layout.grid), axis, -1).ravel()
    return (Part(self, "block_diagonal", layout.grid[axis], as_order(lines, layout.length)),)


@dataclasses.dataclass(frozen=True)
class Neighborhood(Near):
  """The `size` nearest keys on every axis; at the border the window shifts and keeps its size.

  Neighborhood attention (Hassani et al. 2023, section 3), dilated as in NATTEN: a dilated window
  contains the nearest keys whose coordinates equal the query's modulo `dilation`. If `size` is
  even, there is one more key on the left.

  Attributes:
    size: The number of keys along an axis, one number or one for each axis.
    dilation: The step between keys, one number or one for each axis; `size * dilation` may not
      exceed the extent.
  """

  size: Sizes = 7
  dilation: Sizes = 1

  def _settings(self, layout: TokenLayout) -> list[tuple[int, int, int]]:
    sizes = _per_axis(self.size, layout, "Neighborhood.size", 1)
    dilations = _per_axis(self.dilation, layout, "Neighborhood.dilation", 1)
    for size, dilation, extent in zip(sizes, dilations, layout.grid, strict=True):
      if size * dilation > extent:
        raise ConfigError(
          f"Neighborhood(size={self.size}, dilation={self.dilation}) needs {size * dilation}"
          f" positions along an axis that has {extent}. Use a smaller window or a larger grid."
        )
    return list(zip(sizes, dilations, layout.grid, strict=True))

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    edges = in_grid(layout, q, k)
    pairs = zip(coordinates(layout, q), coordinates(layout, k), strict=True)
    for (i, j), (size, dilation, extent) in zip(pairs, self._settings(layout), strict=True):
      start = _start(i, size, dilation, extent)
      edges = edges & (i % dilation == j % dilation)
      edges = edges & (j // dilation >= start) & (j // dilation < start + size)
    return edges

  def reach(self, layout: TokenLayout, low: list[int], high: list[int]) -> Corners:
    low, high = [*low], [*high]
    for axis, (size, dilation, extent) in enumerate(self._settings(layout)):
      span = size * dilation
      # A window reaches half its span from its query, or its whole span from a border it touches.
      half = size // 2 * dilation
      low[axis] = max(0, min(low[axis] - half, extent - span - dilation))
      high[axis] = min(extent - 1, max(high[axis] + half, span + dilation))
    return low, high


def _start(i: Index, size: int, dilation: int, extent: int) -> Index:
  """Returns the first key of the window of `i`, counted among coordinates equal by `dilation`."""
  members = (extent - 1 - i % dilation) // dilation + 1
  return namespace(i).clip(i // dilation - size // 2, 0, members - size)


@dataclasses.dataclass(frozen=True)
class ShiftedWindow(Near):
  """Swin's windows: the grid is cut into boxes; Swin moves the cut by `shift` in every other layer.

  Liu et al. 2021, section 3.2. The grid is rolled back by `shift` and then cut. Tokens rolled past
  the border may not attend the rest of their box (the published region mask). An extent that `size`
  does not divide is padded at its end before rolling; no query attends padding.

  Attributes:
    size: The extent of a box, one number or one for each axis.
    shift: The shift, one number or one for each axis, less than `size`; 0 for unshifted boxes.
  """

  size: Sizes = 7
  shift: Sizes = 0

  def _settings(self, layout: TokenLayout) -> list[tuple[int, int, int]]:
    sizes = _per_axis(self.size, layout, "ShiftedWindow.size", 1)
    shifts = _per_axis(self.shift, layout, "ShiftedWindow.shift", 0)
    for size, shift in zip(sizes, shifts, strict=True):
      if shift >= size:
        raise ConfigError(f"ShiftedWindow.shift={self.shift} must be less than size={self.size}.")
    padded = [-(-extent // size) * size for extent, size in zip(layout.grid, sizes, strict=True)]
    return list(zip(sizes, shifts, padded, strict=True))

  def place(self, layout: TokenLayout) -> tuple[tuple[int, ...], np.ndarray]:
    """Returns the extents of a box, and the place of each token in its box, int (N,).

    The place is -1 for prefix tokens.
    """
    tokens, settings = np.arange(layout.length), self._settings(layout)
    sizes = tuple(size for size, _, _ in settings)
    inside = tuple(
      (i - shift) % size
      for i, (size, shift, _) in zip(coordinates(layout, tokens), settings, strict=True)
    )
    return sizes, np.where(tokens < layout.prefix, -1, np.ravel_multi_index(inside, sizes))

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    edges = in_grid(layout, q, k)
    pairs = zip(coordinates(layout, q), coordinates(layout, k), strict=True)
    for (i, j), (size, shift, extent) in zip(pairs, self._settings(layout), strict=True):
      # After rolling back by `shift`, the first `shift` coordinates end the last box.
      box_i, box_j = (i - shift) % extent // size, (j - shift) % extent // size
      edges = edges & (box_i == box_j) & ((i < shift) == (j < shift))
    return edges

  def reach(self, layout: TokenLayout, low: list[int], high: list[int]) -> Corners:
    low, high = [*low], [*high]
    for axis, (size, shift, _) in enumerate(self._settings(layout)):
      # Without wrapping, boxes begin at shift + n * size; the box that ends at `shift` is smaller.
      low[axis] = max(0, (low[axis] - shift) // size * size + shift)
      end = (high[axis] - shift) // size * size + shift + size - 1
      high[axis] = min(layout.grid[axis] - 1, end)
    return low, high
