"""Attention along any of the named patterns."""

from typing import ClassVar

from vitx.attention.base import Properties
from vitx.attention.pattern import PatternAttention
from vitx.config.registry import lookup
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import PATTERNS, Pattern


class GivenPatternAttention(PatternAttention):
  """Softmax attention along the edges of one of `vitx.ops.patterns.PATTERNS`.

  Attributes:
    edges: The name of the pattern.

  `PatternAttention` has the other attributes.
  """

  properties: ClassVar = Properties(accepts_causal=True, flops_exponent=2.0)  # quadratic for "full"

  edges: str = "full"

  def pattern(self, layout: TokenLayout) -> Pattern:
    self.check_places(layout, "edges")
    return lookup(PATTERNS, self.edges, "token_mixer.edges")
