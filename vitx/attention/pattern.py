"""What all sparse attention modules share: projections once, then attention along a pattern."""

import math
from typing import ClassVar

import flax.linen as nn
import jax

from vitx import ops
from vitx.attention.base import AttentionModule
from vitx.attention.contract import Properties
from vitx.config.checks import PositiveInt, Rate
from vitx.config.errors import ConfigError
from vitx.layers.projections import from_heads
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Global, Pattern
from vitx.ops.shapes import TokenMask, TokenPlaces, Tokens


class PatternAttention(AttentionModule):
  """Softmax attention along the edges of a pattern; a subclass says which in `pattern`.

  Attributes:
    value_dim: D of the values; None for that of queries and keys.
    out_projection: whether the heads are mixed by a learned projection at the end.
    prefix_global: whether prefix tokens (the class token, a model's `extra_tokens`) attend all and
      are attended by all.
    tile: tokens in a block of the kernelized path, no part of the result; None for what suits the
      pattern.
    dropout: of the attention probabilities; only "masked" can draw it.

  `AttentionModule` has the other attributes; "kernelized" works on the tiles that hold edges.
  """

  properties: ClassVar = Properties(accepts_causal=True)
  decodes: ClassVar = True

  value_dim: PositiveInt | None = None
  out_projection: bool = True
  prefix_global: bool = True
  tile: PositiveInt | None = None
  dropout: Rate = 0.0

  def pattern(self, layout: TokenLayout) -> Pattern:
    """Returns the edges over the grid, for all layers."""
    raise NotImplementedError

  def full_pattern(self, layout: TokenLayout) -> Pattern:
    """Returns the edges of this layer, prefix tokens included; `causal` comes on top."""
    return self.with_prefix(self.pattern(layout).at(self.layer), layout)

  def with_prefix(self, pattern: Pattern, layout: TokenLayout) -> Pattern:
    """Returns a pattern and what `prefix_global` adds to it."""
    return pattern | Global(prefix=True) if self.prefix_global and layout.prefix else pattern

  def training_pattern(self, layout: TokenLayout) -> Pattern:
    """Returns the edges of this layer at a step of training; a subclass may draw them anew."""
    return self.full_pattern(layout)

  def replace_rows(
    self,
    x: jax.Array,
    layout: TokenLayout,
    mask: jax.Array | None,
    train: bool,
    out: jax.Array,
    matrix: jax.Array | None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Replaces the rows of queries that attend in a way of their own; here there are none.

    Args:
      x, layout, mask, train: of the call.
      out: (B, N, H, D), along the pattern.
      matrix: (B, H, N, N) of the masked path, else None.

    Returns:
      `out` and `matrix`, with the rows of those queries replaced.
    """
    return out, matrix

  @nn.compact
  def __call__(
    self,
    x: Tokens,
    layout: TokenLayout,
    *,
    mask: TokenMask | None = None,
    at: TokenPlaces | None = None,
    train: bool,
  ) -> Tokens:
    """Mixes tokens.

    Args:
      x: (B, N, C).
      layout: the tokens' arrangement.
      mask: boolean (B, N), True = may be attended. Masked tokens contribute exactly nothing.
      at: int32 (1,), the place of the one token that is decoded with a mutable collection "cache";
        None for all.
      train: whether dropout is active; it draws from the stream "dropout".

    Returns:
      (B, N, C).

    Raises:
      ConfigError: unknown implementation, "kernelized" with dropout, a pattern that does not fit,
        places `at` without a cache, or a cache without `causal`.
    """
    q, k, v = self.project(x, self.value_dim)  # (B, N, H, D)
    scale = 1 / math.sqrt(q.shape[-1])
    q, k = self.apply_positions(q, k, layout, scale, at)
    if at is not None and self.is_decoding(x, at):
      out = self.decode(q, k, v, self.full_pattern(layout), layout, scale, at)
    else:
      out = self._attend(x, q, k, v, layout, scale, mask, at, train)
    if self.out_projection:
      return from_heads(x.shape[-1], dtype=self.dtype)(out)
    return out.reshape(*x.shape[:2], -1)

  def _attend(self, x, q, k, v, layout, scale, mask, at, train) -> jax.Array:
    """Attends from all tokens; returns (B, N, H, D) and sows the matrix, if there is one."""
    if at is not None:
      raise ConfigError(
        f"model.token_mixer: {type(self).__name__} cannot be called for tokens `at` some places of"
        " the layout, but for one at a time with a cache; use another token_mixer"
      )
    out, matrix = ops.attention_with_weights(
      q,
      k,
      v,
      self.training_pattern(layout) if train else self.full_pattern(layout),
      layout,
      key_mask=mask,
      scale=scale,
      causal=self.causal,
      dropout=self.dropout,
      key=self.dropout_key(train),
      implementation=self.implementation,
      tile=self.tile,
    )
    out, matrix = self.replace_rows(x, layout, mask, train, out, matrix)
    self.sow_matrix(matrix)
    return out
