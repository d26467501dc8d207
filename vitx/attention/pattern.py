"""What all sparse attention modules share: projections once, then attention along a pattern."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.choices import chosen
from vitx.attention.positions import turned
from vitx.attention.projections import Dtype, from_heads, head_dim_of, query_key_value
from vitx.attention.properties import Properties
from vitx.ops import pattern_attention as ops
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Global, Pattern


class PatternAttention(nn.Module):
  """Softmax attention along the edges of a pattern; a subclass says which in `pattern`.

  Attributes:
    num_heads: H.
    head_dim: D; none: C / H.
    use_bias: of the query, key and value projections.
    out_projection: whether the heads are mixed by a learned projection at the end.
    prefix_global: whether prefix tokens (the class token) attend all and are attended by all.
    tile: tokens in a block of the kernelized path; no part of the result.
    dropout: of the attention probabilities; only "masked" can draw it.
    rotary: "none", "sequence" or "axial" rotation of queries and keys by their position.
    rotary_base: of the frequencies.
    implementation: "masked" holds the matrix and sows it as intermediate `attention` (B, H, N, N);
      "kernelized" works on the tiles that hold edges; "auto" is "kernelized" without dropout.
    dtype: of the computation; probabilities are float32.
    layer, depth: the position of the block that this mixer serves.
  """

  properties: ClassVar = Properties()

  num_heads: int
  head_dim: int | None = None
  use_bias: bool = True
  out_projection: bool = True
  prefix_global: bool = True
  tile: int = 64
  dropout: float = 0.0
  rotary: str = "none"
  rotary_base: float = 10000.0
  implementation: str = "auto"
  dtype: Dtype = jnp.float32
  layer: int = 0
  depth: int = 1

  def pattern(self, layout: TokenLayout) -> Pattern:
    """The edges over the grid, for all layers."""
    raise NotImplementedError

  def full_pattern(self, layout: TokenLayout) -> Pattern:
    """The edges of this layer, prefix tokens included."""
    pattern = self.pattern(layout).at(self.layer)
    return pattern | Global(prefix=True) if self.prefix_global and layout.prefix else pattern

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
    width = x.shape[-1]
    head_dim = head_dim_of(width, self.num_heads, self.head_dim)
    q, k, v = query_key_value(x, self.num_heads, head_dim, dtype=self.dtype, use_bias=self.use_bias)
    q, k = turned(self.rotary, self.rotary_base, layout, q, k)
    pattern = self.full_pattern(layout)
    if chosen(self.implementation, self.dropout) == "masked":
      key = self.make_rng("dropout") if train and self.dropout else None
      out, matrix = ops.masked_pattern_attention(
        q, k, v, pattern, layout, key_mask=mask, dropout_rate=self.dropout, key=key
      )
      self.sow("intermediates", "attention", matrix)
    else:
      out = ops.sparse_pattern_attention(q, k, v, pattern, layout, tile=self.tile, key_mask=mask)
    if self.out_projection:
      return from_heads(width, dtype=self.dtype)(out)
    return out.reshape(*x.shape[:2], -1)
