"""Softmax attention."""

import math
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax

from vitx.attention.base import AttentionModule
from vitx.attention.contract import Properties
from vitx.layers.projections import from_heads
from vitx.ops.kernels import softmax
from vitx.ops.layout import TokenLayout


class SoftmaxAttention(AttentionModule):
  """Multi-head softmax attention (Vaswani et al. 2017, section 3.2).

  Attributes:
    value_dim: D of the values; none: that of queries and keys.
    value_bias: whether the projections of the values and of the output have biases.
    qk_norm: a layer normalization, without bias, of queries and of keys (Dehghani et al. 2023).
    dropout: of the attention probabilities; only "masked" can draw it.
    others: see `AttentionModule`.
  """

  properties: ClassVar = Properties(
    permutation_equivariant=True, masking_is_deletion=True, flops_exponent=2.0
  )

  value_dim: int | None = None
  value_bias: bool = True
  qk_norm: bool = False
  dropout: float = 0.0

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, *, mask: jax.Array | None = None, train: bool
  ) -> jax.Array:
    """Mixes tokens.

    Args:
      x: (B, N, C).
      layout: the tokens' arrangement, for positions.
      mask: boolean (B, N), True = may be attended. Masked tokens contribute exactly nothing.
      train: whether dropout is active; it draws from the stream "dropout".

    Returns:
      (B, N, C).

    Raises:
      ConfigError: unknown implementation, or "kernelized" with dropout.
    """
    q, k, v = self.projected(x, self.value_dim, self.value_bias)  # (B, N, H, D)
    if self.qk_norm:
      norm = partial(nn.LayerNorm, use_bias=False, dtype=self.dtype)
      q, k = norm(name="query_norm")(q), norm(name="key_norm")(k)
    scale = 1 / math.sqrt(q.shape[-1])
    q, k = self.positioned(q, k, layout, scale)
    if self.picked(x) == "masked":
      key = self.make_rng("dropout") if train and self.dropout else None
      attend = None if mask is None else mask[:, None, None, :]  # (B, 1, 1, N)
      out, matrix = softmax.masked_attention(
        q, k, v, mask=attend, scale=scale, dropout_rate=self.dropout, key=key
      )
      self.sow("intermediates", "attention", matrix)
    else:
      out = softmax.kernelized_attention(q, k, v, key_mask=mask, scale=scale)
    return from_heads(x.shape[-1], dtype=self.dtype, use_bias=self.value_bias)(out)
