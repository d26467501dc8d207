"""Attention along rows and columns, in neighbourhoods, and in windows of a grid."""

from typing import ClassVar

from vitx.attention.pattern import PatternAttention
from vitx.attention.properties import Properties
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Axial, Neighborhood, Pattern, ShiftedWindow, cycle, per_head


class AxialAttention(PatternAttention):
  """Half of the heads attend along rows, the others along columns (Ho et al. 2019)."""

  properties: ClassVar = Properties(memory_exponent=1.5, flops_exponent=1.5)

  def pattern(self, layout: TokenLayout) -> Pattern:
    rows = self.num_heads // 2
    return per_head(*[Axial(-1)] * rows, *[Axial(0)] * (self.num_heads - rows))


class NeighborhoodAttention(PatternAttention):
  """The k x k neighbourhood, shifted inside at the border (Hassani et al. 2023, section 3.1).

  Attributes:
    size: k, along each axis; no larger than the grid.
    dilation: step between neighbours.
  """

  size: int = 7
  dilation: int = 1

  def pattern(self, layout: TokenLayout) -> Pattern:
    return Neighborhood(self.size, self.dilation)


class ShiftedWindowAttention(PatternAttention):
  """Windows of the grid, shifted by half in every other layer (Liu et al. 2021, section 3.2).

  Attributes:
    size: side of a window in tokens.
  """

  size: int = 7

  def pattern(self, layout: TokenLayout) -> Pattern:
    return cycle(ShiftedWindow(self.size), ShiftedWindow(self.size, self.size // 2))
