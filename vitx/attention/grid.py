"""Attention on a grid of tokens: along rows and columns, in neighborhoods, and in windows."""

from typing import ClassVar, Literal

from vitx.attention.base import Properties
from vitx.attention.pattern import PatternAttention
from vitx.config.checks import PositiveInt, SquaredSize
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Axial, Neighborhood, Pattern, ShiftedWindow, cycle
from vitx.ops.relative_bias import Places


class AxialAttention(PatternAttention):
  """Attention along rows in half of the heads and along columns in the others (Ho et al. 2019)."""

  properties: ClassVar = Properties(accepts_causal=True, flops_exponent=1.5)

  def pattern(self, layout: TokenLayout) -> Pattern:
    return self.by_half(Axial(-1), Axial(0))


class NeighborhoodAttention(PatternAttention):
  """Attention to k x k neighborhoods, moved inward at borders (Hassani et al. 2023, section 3.1).

  Attributes:
    size: The side k along each axis; no larger than the grid.
    dilation: The step between neighbors.

  `PatternAttention` has the other attributes.
  """

  size: PositiveInt = 7
  dilation: PositiveInt = 1

  def pattern(self, layout: TokenLayout) -> Pattern:
    return Neighborhood(self.size, self.dilation)


class ShiftedWindowAttention(PatternAttention):
  """Attention in windows, shifted by half in every other layer (Liu et al. 2021, section 3.2).

  Windows are not shifted along an axis that one window covers, as in the released code. If the
  window does not divide the grid, the grid is padded at its end before it is rolled (shifted), as
  in Hugging Face's `SwinLayer`; timm pads after rolling. Here no query attends the padding, while
  in the code of Hugging Face and of timm the padding's zeros take a share of each softmax. If the
  window divides the grid, the output agrees with that of Hugging Face and timm.

  Attributes:
    size: The side M of a window in tokens.
    relative_bias: The learned bias of the logits: "none", "axial", or "window", as published
      (equation 4). "window" has one table, (H, 2 M - 1, 2 M - 1), whose indices are the differences
      of the two coordinates of query and key.

  `PatternAttention` has the other attributes.
  """

  size: SquaredSize = 7
  relative_bias: Literal["none", "axial", "window"] = "none"  # type: ignore[assignment]

  def pattern(self, layout: TokenLayout) -> Pattern:
    return cycle(ShiftedWindow(self.size), ShiftedWindow(self.size, self.shift(layout)))

  def shift(self, layout: TokenLayout) -> tuple[int, ...]:
    """Returns the shift of the windows of odd layers, in tokens along each axis of the grid."""
    return tuple(0 if extent <= self.size else self.size // 2 for extent in layout.grid)

  def places(self, layout: TokenLayout) -> list[Places]:
    if self.relative_bias == "axial":
      return super().places(layout)
    windows = ShiftedWindow(self.size, self.shift(layout) if self.layer % 2 else 0)
    return [Places(*windows.place(layout))]
