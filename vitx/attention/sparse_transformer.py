"""The Sparse Transformer's attention, factorized into a local part and a part with a stride."""

from typing import ClassVar, Literal

from vitx.attention.base import Properties
from vitx.attention.pattern import PatternAttention
from vitx.config.checks import NonNegativeInt, PositiveInt
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Fixed, Pattern, Strided, cycle


class _Factorized(PatternAttention):
  """Attention to two sets of tokens: local tokens, and a second set that each subclass defines.

  Attributes:
    stride: The stride l; None means the number of tokens in a row of the grid.
    arrangement: The use of the two sets. With "merged", a query attends both. With "heads", the
      first half of the heads attends local tokens, and the other half attends the second set. With
      "layers", a layer attends only one of the sets.
    local_layers: The number of local layers between two layers with the second set, if
      `arrangement` is "layers".
    first: The first layer with the second set, from 0, if `arrangement` is "layers".

  `PatternAttention` has the other attributes.
  """

  properties: ClassVar = Properties(accepts_causal=True, flops_exponent=1.5)

  stride: PositiveInt | None = None
  arrangement: Literal["merged", "heads", "layers"] = "heads"
  local_layers: PositiveInt = 1
  first: NonNegativeInt = 0

  second_part: ClassVar[str]  # the name of the second set of tokens

  def part(self, name: str) -> Pattern:
    """Returns the pattern in which queries attend one of the two sets of tokens, or both.

    Args:
      name: The name of the set: "local", the value of `second_part`, or "merged" for both sets.
    """
    raise NotImplementedError

  def pattern(self, layout: TokenLayout) -> Pattern:
    if self.arrangement == "merged":
      return self.part("merged")
    if self.arrangement == "heads":
      return self.by_half(self.part("local"), self.part(self.second_part))
    parts = [self.part(self.second_part), *[self.part("local")] * self.local_layers]
    start = -self.first % len(parts)
    return cycle(*parts[start:], *parts[:start])


class StridedAttention(_Factorized):
  """Strided attention: a query attends the last l tokens, and every l-th token of the sequence.

  The source is Child et al. 2019, section 4.3, "strided". The l-th tokens are those whose distance
  from the query is a multiple of l. Forms that are not causal also have later tokens.

  Attributes:
    form: The form of the local set: "paper" and "code" are causal, with l + 1 and l keys;
      "bidirectional" has the keys j with |i - j| < l for query i; "axial" has the query's own row,
      in both directions.

  `_Factorized` has `stride`, `arrangement`, `local_layers` and `first`; `PatternAttention` has the
  other attributes.
  """

  second_part: ClassVar = "column"

  form: Literal["paper", "code", "bidirectional", "axial"] = "axial"

  def part(self, name: str) -> Pattern:
    return Strided(self.stride, name, self.form)


class FixedAttention(_Factorized):
  """Fixed attention: a query attends its own run of l tokens, and c summary tokens of every run.

  The tokens are divided into runs of l consecutive tokens. By default, the last c tokens of a run
  are its summary tokens. The source is Child et al. 2019, section 4.3, "fixed".

  Attributes:
    summary: The number c of summary tokens in a run.
    distinct: The number of groups of c tokens, counted from the end of a run, that serve as summary
      tokens: head h attends group h mod `distinct`. 1 means the last c tokens for all heads.
    causal: Whether attention is causal, as published; if not, queries attend the summary tokens of
      later runs too.

  `_Factorized` has `stride`, `arrangement`, `local_layers` and `first`; `PatternAttention` has the
  other attributes.
  """

  second_part: ClassVar = "summary"

  summary: PositiveInt = 1
  distinct: PositiveInt = 1

  def part(self, name: str) -> Pattern:
    return Fixed(self.stride, self.summary, name, self.causal, self.distinct)
