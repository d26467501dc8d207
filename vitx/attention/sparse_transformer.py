"""The Sparse Transformer's factorized attention."""

from typing import ClassVar, Literal

from vitx.attention.base import Properties
from vitx.attention.pattern import PatternAttention
from vitx.config.checks import NonNegativeInt, PositiveInt
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Fixed, Pattern, Strided, cycle


class _Factorized(PatternAttention):
  """Attention to two sets of tokens: local ones, and a second set that each subclass defines.

  Attributes:
    stride: The number l of tokens in a stride; None means the width of the grid.
    arrangement: The arrangement of the parts: "merged" unites them; "heads" gives the local part to
      the first half of the heads and the second part to the others; "layers" gives a layer one of
      them, in turn.
    local_layers: The number of local layers between two layers of the second part, if `arrangement`
      is "layers".
    first: The first layer that has the second part, if `arrangement` is "layers".

  `PatternAttention` has the other attributes.
  """

  properties: ClassVar = Properties(accepts_causal=True, flops_exponent=1.5)

  stride: PositiveInt | None = None
  arrangement: Literal["merged", "heads", "layers"] = "heads"
  local_layers: PositiveInt = 1
  first: NonNegativeInt = 0

  second: ClassVar[str]  # the name of the second part

  def part(self, name: str) -> Pattern:
    """Returns the pattern of one part of the factorization.

    Args:
      name: The name of the part: "local", the value of `second`, or "merged" for the union of both.
    """
    raise NotImplementedError

  def pattern(self, layout: TokenLayout) -> Pattern:
    if self.arrangement == "merged":
      return self.part("merged")
    if self.arrangement == "heads":
      return self.by_half(self.part("local"), self.part(self.second))
    parts = [self.part(self.second), *[self.part("local")] * self.local_layers]
    start = -self.first % len(parts)
    return cycle(*parts[start:], *parts[:start])


class StridedAttention(_Factorized):
  """Strided attention: a query reads the last l tokens, and every l-th token before it.

  The source is Child et al. 2019, section 4.3, "strided".

  Attributes:
    form: The form of the local part: "paper" and "code" are causal, with l + 1 and l keys;
      "bidirectional" has the keys j with |i - j| < l for query i; "axial" has the query's own row,
      in both directions.

  `_Factorized` has `stride`, `arrangement`, `local_layers` and `first`; `PatternAttention` has the
  other attributes.
  """

  second: ClassVar = "column"

  form: Literal["paper", "code", "bidirectional", "axial"] = "axial"

  def part(self, name: str) -> Pattern:
    return Strided(self.stride, name, self.form)


class FixedAttention(_Factorized):
  """Fixed attention: a query reads its own run of l tokens, and c summary tokens of every run.

  The tokens are divided into runs of l; the summary tokens of a run are its last ones. The source
  is Child et al. 2019, section 4.3, "fixed".

  Attributes:
    summary: The number c of summary tokens in a run.
    distinct: The number of sub-runs of c tokens, counted from the end of a run: head h reads the
      summary in sub-run h mod `distinct`.
    causal: Whether attention is causal, as published; with False, queries read summaries in both
      directions.

  `_Factorized` has `stride`, `arrangement`, `local_layers` and `first`; `PatternAttention` has the
  other attributes.
  """

  second: ClassVar = "summary"

  summary: PositiveInt = 1
  distinct: PositiveInt = 1

  def part(self, name: str) -> Pattern:
    return Fixed(self.stride, self.summary, name, self.causal, self.distinct)
