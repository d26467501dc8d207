"""The Sparse Transformer's factorized attention."""

from typing import ClassVar, Literal

from vitx.attention.contract import Properties
from vitx.attention.pattern import PatternAttention
from vitx.config.checks import NonNegativeInt, PositiveInt
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Fixed, Pattern, Strided, cycle, per_head


class _Factorized(PatternAttention):
  """A pattern of two parts: arranged in one head, over heads, or over layers.

  Attributes:
    stride: l; None for the width of the grid.
    arrangement: "merged" unites the parts; "heads" gives the first half of the heads the local
      part and the others the second; "layers" cycles through layers.
    local_layers: with "layers", local layers for each one of the second part.
    first: with "layers", the first layer that has the second part.

  `PatternAttention` has the other attributes.
  """

  properties: ClassVar = Properties(accepts_causal=True, flops_exponent=1.5)

  stride: PositiveInt | None = None
  arrangement: Literal["merged", "heads", "layers"] = "heads"
  local_layers: PositiveInt = 1
  first: NonNegativeInt = 0

  def part(self, name: str) -> Pattern:
    """Returns the pattern of one part: "merged", "local" or the second part's own name."""
    raise NotImplementedError

  def arrange(self, second: str) -> Pattern:
    """Returns the parts as `arrangement` says."""
    if self.arrangement == "merged":
      return self.part("merged")
    if self.arrangement == "heads":
      local = self.num_heads // 2
      parts = [self.part("local")] * local + [self.part(second)] * (self.num_heads - local)
      return per_head(*parts)
    parts = [self.part(second), *[self.part("local")] * self.local_layers]
    start = -self.first % len(parts)
    return cycle(*parts[start:], *parts[:start])


class StridedAttention(_Factorized):
  """The last l tokens, and every l-th token (Child et al. 2019, section 4.3, "strided").

  Attributes:
    form: "paper" and "code" are causal, with l + 1 and l local keys; "bidirectional" has
      |i - j| < l; "axial" the query's own row, in both directions.

  `_Factorized` has `stride`, `arrangement` and `local_layers`, `PatternAttention` the others.
  """

  form: Literal["paper", "code", "bidirectional", "axial"] = "axial"

  def part(self, name: str) -> Pattern:
    return Strided(self.stride, name, self.form)

  def pattern(self, layout: TokenLayout) -> Pattern:
    return self.arrange("column")


class FixedAttention(_Factorized):
  """The query's own run of l tokens, and c summary tokens of every run.

  (Child et al. 2019, section 4.3, "fixed".)

  Attributes:
    summary: c.
    distinct: heads that read summaries of their own before they repeat; with 1 all read the same.
    causal: as published; False reads summaries in both directions.

  `_Factorized` has `stride`, `arrangement` and `local_layers`, `PatternAttention` the others.
  """

  summary: PositiveInt = 1
  distinct: PositiveInt = 1

  def part(self, name: str) -> Pattern:
    return Fixed(self.stride, self.summary, name, self.causal, self.distinct)

  def pattern(self, layout: TokenLayout) -> Pattern:
    return self.arrange("summary")
