"""Longformer's attention."""

from vitx.attention.pattern import PatternAttention
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import DilatedWindow, Pattern


class LongformerAttention(PatternAttention):
  """A sliding window, dilated in some heads, and global prefix tokens (Beltagy et al. 2020, 3.1).

  Attributes:
    window: keys on each side of the query.
    dilation: step between keys, for each head; fewer than H repeat.
  """

  window: int = 8
  dilation: tuple[int, ...] = (1,)

  def pattern(self, layout: TokenLayout) -> Pattern:
    return DilatedWindow(self.window, tuple(self.dilation))
