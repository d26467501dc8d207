"""Attention along rows and columns, in neighborhoods, and in windows of a grid."""

from typing import ClassVar

from vitx.attention.contract import Properties
from vitx.attention.pattern import PatternAttention
from vitx.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Axial, Neighborhood, Pattern, ShiftedWindow, cycle, per_head
from vitx.ops.relative_bias import Places


class AxialAttention(PatternAttention):
  """Half of the heads attend along rows, the others along columns (Ho et al. 2019)."""

  properties: ClassVar = Properties(flops_exponent=1.5)

  def pattern(self, layout: TokenLayout) -> Pattern:
    rows = self.num_heads // 2
    return per_head(*[Axial(-1)] * rows, *[Axial(0)] * (self.num_heads - rows))


class NeighborhoodAttention(PatternAttention):
  """The k x k neighborhood, shifted inside at the border (Hassani et al. 2023, section 3.1).

  Attributes:
    size: k, along each axis; no larger than the grid.
    dilation: step between neighbors.
  """

  size: int = 7
  dilation: int = 1

  def suitable_tile(self) -> int:
    return 16  # a patch of 4 x 4 has little around it that is no neighbor

  def pattern(self, layout: TokenLayout) -> Pattern:
    return Neighborhood(self.size, self.dilation)


class ShiftedWindowAttention(PatternAttention):
  """Windows of the grid, shifted by half in every other layer (Liu et al. 2021, section 3.2).

  Along an axis that one window holds nothing is shifted, as in the released code.

  Attributes:
    size: side of a window in tokens.
    relative_bias: also "window", as published (equation 4): one table (H, 2 M - 1, 2 M - 1) by the
      difference of both coordinates inside a window of M x M.
    others: see `PatternAttention`.
  """

  size: int = 7

  def suitable_tile(self) -> int:
    return 32

  def pattern(self, layout: TokenLayout) -> Pattern:
    return cycle(ShiftedWindow(self.size), ShiftedWindow(self.size, self.shift(layout)))

  def shift(self, layout: TokenLayout) -> tuple[int, ...]:
    """Of every other layer, along each axis."""
    return tuple(0 if extent <= self.size else self.size // 2 for extent in layout.grid)

  def places(self, layout: TokenLayout) -> list[Places]:
    if self.relative_bias == "axial":
      return super().places(layout)
    if self.relative_bias != "window":
      raise ConfigError(
        f"token_mixer.relative_bias={self.relative_bias!r}; valid: axial, none, window"
      )
    windows = ShiftedWindow(self.size, self.shift(layout) if self.layer % 2 else 0)
    return [Places(*windows.place(layout))]
