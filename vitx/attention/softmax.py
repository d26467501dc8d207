"""Softmax attention."""

import math
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn

from vitx import ops
from vitx.attention.base import AttentionModule
from vitx.attention.contract import Properties
from vitx.config.checks import PositiveInt, Rate
from vitx.layers.projections import from_heads
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, TokenPlaces, Tokens


class SoftmaxAttention(AttentionModule):
  """Multi-head softmax attention (Vaswani et al. 2017, section 3.2).

  Attributes:
    value_dim: D of the values; None for that of queries and keys.
    value_bias: whether the projections of the values and of the output have biases.
    qk_norm: a layer normalization, without bias, of queries and of keys (Dehghani et al. 2023).
    dropout: of the attention probabilities; only "masked" can draw it.

  `AttentionModule` has the other attributes.
  """

  properties: ClassVar = Properties(
    accepts_causal=True,
    permutation_equivariant=True,
    masking_is_deletion=True,
    flops_exponent=2.0,
  )

  decodes: ClassVar = True
  tells_class_attention: ClassVar = True

  value_dim: PositiveInt | None = None
  value_bias: bool = True
  qk_norm: bool = False
  dropout: Rate = 0.0

  @nn.compact
  def __call__(
    self,
    x: Tokens,
    layout: TokenLayout,
    *,
    mask: TokenMask | None = None,
    at: TokenPlaces | None = None,
    class_attention: bool = False,
    train: bool,
  ) -> Any:
    """Mixes tokens.

    Args:
      x: (B, N, C).
      layout: the tokens' arrangement, for positions.
      mask: boolean (B, N), True = may be attended. Masked tokens contribute exactly nothing.
      at: integers (N,), ascending, the places in the layout that these tokens have; None for all.
        With a mutable collection "cache" N is 1, and the tokens before it are attended too.
      class_attention: also return what the first token attends.
      train: whether dropout is active; it draws from the stream "dropout".

    Returns:
      (B, N, C); with `class_attention` also float32 (B, N), the mean over the heads.

    Raises:
      ConfigError: unknown implementation, "kernelized" with dropout, or a cache without `causal`.
    """
    q, k, v = self.project(x, self.value_dim, self.value_bias)  # (B, N, H, D)
    if self.qk_norm:
      norm = partial(nn.LayerNorm, use_bias=False, dtype=self.dtype)
      q, k = norm(name="query_norm")(q), norm(name="key_norm")(k)
    scale = 1 / math.sqrt(q.shape[-1])
    q, k = self.apply_positions(q, k, layout, scale, at)
    if at is not None and self.is_decoding(x, at):
      out = self.decode(q, k, v, None, layout, scale, at)
    else:
      out, matrix = ops.attention_with_weights(
        q,
        k,
        v,
        key_mask=mask,
        scale=scale,
        causal=self.causal,
        dropout=self.dropout,
        key=self.dropout_key(train),
        implementation=self.implementation,
      )
      self.sow_matrix(matrix)
    out = from_heads(x.shape[-1], dtype=self.dtype, use_bias=self.value_bias)(out)
    return (out, self.class_attention(q, k, scale, mask)) if class_attention else out
