"""Attention along the edges of a random graph over tokens."""

from typing import ClassVar

from vitx.attention.base import Properties
from vitx.attention.pattern import PatternAttention
from vitx.config.checks import PositiveInt, Probability, Seed
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import ErdosRenyi, Pattern, WattsStrogatz


class ErdosRenyiAttention(PatternAttention):
  """Attention along a random graph; heads and layers differ (Zaheer et al. 2020, section 2).

  Attributes:
    p: The probability of each edge.
    seed: The seed of the draw.

  `PatternAttention` has the other attributes.
  """

  properties: ClassVar = Properties(accepts_causal=True, flops_exponent=2.0)

  p: Probability = 0.1
  seed: Seed = 0

  def pattern(self, layout: TokenLayout) -> Pattern:
    return ErdosRenyi(self.p, heads=self.num_heads, seed=self.seed)


class WattsStrogatzAttention(PatternAttention):
  """Attention along a small-world graph (Watts and Strogatz; Zaheer et al. 2020, section 2).

  The graph is a ring in which every token is linked to its nearest neighbors. Then some edges are
  redirected at random.

  Attributes:
    neighbors: The number w of tokens that each token is linked to, half on each side.
    beta: The share of edges that are redirected at random.
    seed: The seed of the draw.

  `PatternAttention` has the other attributes.
  """

  neighbors: PositiveInt = 8
  beta: Probability = 0.1
  seed: Seed = 0

  def pattern(self, layout: TokenLayout) -> Pattern:
    return WattsStrogatz(self.neighbors, self.beta, heads=self.num_heads, seed=self.seed)
