"""What all sparse attention modules share: projections once, then attention along a pattern."""

import math
from typing import ClassVar

import flax.linen as nn
import jax

from vitx.attention.base import AttentionModule
from vitx.attention.contract import Properties
from vitx.layers.projections import from_heads
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Global, Pattern
from vitx.ops.sparse import pattern_attention as ops


class PatternAttention(AttentionModule):
  """Softmax attention along the edges of a pattern; a subclass says which in `pattern`.

  Attributes:
    out_projection: whether the heads are mixed by a learned projection at the end.
    prefix_global: whether prefix tokens (the class token, a model's `extra_tokens`) attend all and
      are attended by all.
    tile: tokens in a block of the kernelized path, no part of the result; none: what suits the
      pattern.
    dropout: of the attention probabilities; only "masked" can draw it.
    others: see `AttentionModule`; "kernelized" works on the tiles that hold edges.
  """

  properties: ClassVar = Properties(masked_up_to=128)

  out_projection: bool = True
  prefix_global: bool = True
  tile: int | None = None
  dropout: float = 0.0

  def pattern(self, layout: TokenLayout) -> Pattern:
    """The edges over the grid, for all layers."""
    raise NotImplementedError

  def suitable_tile(self) -> int:
    """Tokens in a block of the kernelized path, where nobody says."""
    return 64

  def full_pattern(self, layout: TokenLayout) -> Pattern:
    """The edges of this layer, prefix tokens included."""
    return self.with_prefix(self.pattern(layout).at(self.layer), layout)

  def with_prefix(self, pattern: Pattern, layout: TokenLayout) -> Pattern:
    """A pattern and what `prefix_global` adds to it."""
    return pattern | Global(prefix=True) if self.prefix_global and layout.prefix else pattern

  def training_pattern(self, layout: TokenLayout) -> Pattern:
    """The edges of this layer at a step of training; a subclass may draw them anew."""
    return self.full_pattern(layout)

  def with_own_rows(
    self,
    x: jax.Array,
    layout: TokenLayout,
    mask: jax.Array | None,
    train: bool,
    out: jax.Array,
    matrix: jax.Array | None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Where a subclass has some queries attend in another way.

    Args:
      x, layout, mask, train: of the call.
      out: (B, N, H, D), along the pattern.
      matrix: (B, H, N, N) of the masked path, else none.

    Returns:
      `out` and `matrix`, with the rows of those queries replaced.
    """
    return out, matrix

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, *, mask: jax.Array | None = None, train: bool
  ) -> jax.Array:
    """Mixes tokens.

    Args:
      x: (B, N, C).
      layout: the tokens' arrangement.
      mask: boolean (B, N), True = may be attended. Masked tokens contribute exactly nothing.
      train: whether dropout is active; it draws from the stream "dropout".

    Returns:
      (B, N, C).

    Raises:
      ConfigError: unknown implementation, "kernelized" with dropout, a pattern that does not fit.
    """
    q, k, v = self.projected(x)  # (B, N, H, D)
    scale = 1 / math.sqrt(q.shape[-1])
    q, k = self.positioned(q, k, layout, scale)
    pattern = self.training_pattern(layout) if train else self.full_pattern(layout)
    if self.picked(x) == "masked":
      key = self.make_rng("dropout") if train and self.dropout else None
      out, matrix = ops.masked_pattern_attention(
        q, k, v, pattern, layout, key_mask=mask, scale=scale, dropout_rate=self.dropout, key=key
      )
    else:
      tile = self.tile or self.suitable_tile()
      out, _ = ops.sparse_pattern_attention(
        q, k, v, pattern, layout, tile=tile, key_mask=mask, scale=scale
      )
      matrix = None
    out, matrix = self.with_own_rows(x, layout, mask, train, out, matrix)
    if matrix is not None:
      self.sow("intermediates", "attention", matrix)
    if self.out_projection:
      return from_heads(x.shape[-1], dtype=self.dtype)(out)
    return out.reshape(*x.shape[:2], -1)
