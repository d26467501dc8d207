"""The base of all sparse attention modules: projections, then attention along a pattern."""

import math
from typing import ClassVar

import flax.linen as nn

from vitx.attention.base import AttentionModule, Properties
from vitx.config.checks import Rate, SquaredSize
from vitx.config.errors import ConfigError
from vitx.layers.projections import from_heads
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Global, Pattern, per_head
from vitx.ops.shapes import TokenMask, TokenPlaces, Tokens


class PatternAttention(AttentionModule):
  """Softmax attention along a pattern's edges (query, key); a subclass defines `pattern`.

  Attributes:
    value_dim: The head width of the values; None means D, as for queries and keys.
    out_projection: Whether a learned projection mixes the heads at the end.
    prefix_global: Whether prefix tokens (the class token, a model's `extra_tokens`) attend all
      tokens and are attended by all.
    tile: The number of tokens in a block of the kernelized path, which has no effect on the result;
      None chooses a number that suits the pattern.
    dropout: The rate at which attention probabilities are dropped; only "masked" can drop them.

  `AttentionModule` has the other attributes; "kernelized" computes only tiles that contain edges.
  """

  properties: ClassVar = Properties(accepts_causal=True)
  decodes: ClassVar = True

  value_dim: SquaredSize | None = None
  out_projection: bool = True
  prefix_global: bool = True
  tile: SquaredSize | None = None
  dropout: Rate = 0.0

  def pattern(self, layout: TokenLayout) -> Pattern:
    """Returns the attention pattern of all layers, without the edges that `prefix_global` adds."""
    raise NotImplementedError

  def by_half(self, first: Pattern, second: Pattern) -> Pattern:
    """Returns a pattern that is `first` in the first half of the heads and `second` in the rest."""
    if self.num_heads == 1:
      raise ConfigError(
        f"model.num_heads=1: {type(self).__name__} has two patterns, each for half of the heads;"
        " set model.num_heads=2, or a token_mixer or arrangement in which all heads are alike."
      )
    half = self.num_heads // 2
    return per_head(*[first] * half, *[second] * (self.num_heads - half))

  def full_pattern(self, layout: TokenLayout) -> Pattern:
    """Returns this layer's pattern, prefix tokens included, before `causal` removes edges."""
    return self.with_prefix(self.pattern(layout).at(self.layer), layout)

  def with_prefix(self, pattern: Pattern, layout: TokenLayout) -> Pattern:
    """Returns the pattern with the edges that `prefix_global` adds."""
    return pattern | Global(prefix=True) if self.prefix_global and layout.prefix else pattern

  def training_pattern(self, layout: TokenLayout) -> Pattern:
    """Returns this layer's pattern at a training step; a subclass may draw a new one."""
    return self.full_pattern(layout)

  def _attend(self, x, q, k, v, layout: TokenLayout, scale: float, mask, train: bool):
    """Computes the attention of all tokens along the pattern, as `softmax_attention` does."""
    pattern = self.training_pattern(layout) if train else self.full_pattern(layout)
    arguments = {"key_mask": mask, "scale": scale, "tile": self.tile}
    return self.softmax_attention(q, k, v, pattern, layout, train=train, **arguments)

  @nn.compact
  def __call__(
    self,
    x: Tokens,
    layout: TokenLayout,
    *,
    mask: TokenMask = None,
    at: TokenPlaces = None,
    train: bool,
  ) -> Tokens:
    """Mixes tokens.

    Args:
      x: The tokens, (B, N, C).
      layout: The arrangement of the tokens.
      mask: A boolean mask (B, N), True = may be attended. Masked tokens contribute exactly nothing.
      at: The index of the one token to decode, int32 (1,); the collection "cache" must then be
        mutable. None means that x has all tokens.
      train: Whether dropout is active; it draws from the stream "dropout".

    Returns:
      The mixed tokens, (B, N, C).
    """
    q, k, v = self.project(x, self.value_dim)  # (B, N, H, D)
    scale = 1 / math.sqrt(q.shape[-1])
    q, k = self.apply_positions(q, k, layout, scale, at)
    if at is None:
      out, matrix = self._attend(x, q, k, v, layout, scale, mask, train)
      self.sow_matrix(matrix)
    elif self.is_decoding(x, at):
      out = self.decode(q, k, v, self.full_pattern(layout), layout, scale, at)
    else:
      raise ConfigError(f"{type(self).__name__} takes `at` only with a mutable 'cache'.")
    if self.out_projection:
      return from_heads(x.shape[-1], dtype=self.dtype)(out)
    return out.reshape(x.shape)
