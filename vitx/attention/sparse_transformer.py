"""The Sparse Transformer's factorized attention."""

from typing import ClassVar

from vitx.attention.contract import Properties
from vitx.attention.pattern import PatternAttention
from vitx.errors import ConfigError, listing
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Fixed, Pattern, Strided, cycle, per_head

ARRANGEMENTS = ("merged", "heads", "layers")


class _Factorized(PatternAttention):
  """A pattern of two parts: arranged in one head, over heads, or over layers.

  Attributes:
    stride: l; none: the width of the grid.
    arrangement: "merged" unites the parts; "heads" gives the first half of the heads the local
      part and the others the second; "layers" cycles through layers.
    local_layers: with "layers", local layers after each one of the second part.
  """

  properties: ClassVar = Properties(flops_exponent=1.5)

  stride: int | None = None
  arrangement: str = "heads"
  local_layers: int = 1

  def part(self, name: str) -> Pattern:
    """The pattern of one part: "merged", "local" or the second part's own name."""
    raise NotImplementedError

  def arranged(self, second: str) -> Pattern:
    """The parts as `arrangement` says."""
    if self.arrangement == "merged":
      return self.part("merged")
    if self.arrangement == "heads":
      local = self.num_heads // 2
      parts = [self.part("local")] * local + [self.part(second)] * (self.num_heads - local)
      return per_head(*parts)
    if self.arrangement == "layers":
      return cycle(self.part(second), *[self.part("local")] * self.local_layers)
    raise ConfigError(
      f"token_mixer.arrangement={self.arrangement!r}; valid: {listing(ARRANGEMENTS)}"
    )


class StridedAttention(_Factorized):
  """The last l tokens, and every l-th token (Child et al. 2019, section 4.3, "strided").

  Attributes:
    form: "paper" and "code" are causal, with l + 1 and l local keys; "bidirectional" has
      |i - j| < l; "axial" the query's own row, in both directions.
  """

  form: str = "axial"

  def part(self, name: str) -> Pattern:
    return Strided(self.stride, name, self.form)

  def pattern(self, layout: TokenLayout) -> Pattern:
    return self.arranged("column")


class FixedAttention(_Factorized):
  """The query's own run of l tokens, and c summary tokens of every run (section 4.3, "fixed").

  Attributes:
    summary: c.
    causal: as published; False reads summaries in both directions.
    distinct: heads that read summaries of their own before they repeat; 1: all read the same.
  """

  properties: ClassVar = Properties(masked_up_to=128, flops_exponent=1.5)

  summary: int = 1
  causal: bool = False
  distinct: int = 1

  def suitable_tile(self) -> int:
    return 16  # a summary brings a whole tile

  def part(self, name: str) -> Pattern:
    return Fixed(self.stride, self.summary, name, self.causal, self.distinct)

  def pattern(self, layout: TokenLayout) -> Pattern:
    return self.arranged("summary")
