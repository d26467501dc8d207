"""Attention along any of the named patterns."""

from typing import ClassVar

from vitx.attention.base import Properties
from vitx.attention.pattern import PatternAttention
from vitx.config.errors import ConfigError
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
    pattern = lookup(PATTERNS, self.edges, "token_mixer.edges")
    if self.edges != "full" and not layout.has_places:
      raise ConfigError(
        f"token_mixer.edges={self.edges!r} needs the places of the tokens, but some tokens were"
        " left out; set token_mixer.edges='full'."
      )
    return pattern
