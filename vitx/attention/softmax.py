"""Softmax attention."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.choices import chosen
from vitx.attention.positions import turned
from vitx.attention.projections import Dtype, from_heads, head_dim_of, query_key_value
from vitx.attention.properties import Properties
from vitx.ops import softmax
from vitx.ops.layout import TokenLayout


class SoftmaxAttention(nn.Module):
  """Multi-head softmax attention (Vaswani et al. 2017, section 3.2).

  Attributes:
    num_heads: H.
    head_dim: D; none: C / H.
    use_bias: of the query, key and value projections.
    dropout: of the attention probabilities.
    rotary: "none", "sequence" or "axial" rotation of queries and keys by their position.
    rotary_base: of the frequencies.
    implementation: "masked" holds the matrix and sows it as intermediate `attention` (B, H, N, N);
      "kernelized" never does; "auto" is "kernelized" but for dropout, which only "masked" draws.
    dtype: of the computation; probabilities are float32.
    layer, depth: the position of the block that this mixer serves.
  """

  properties: ClassVar = Properties(
    permutation_equivariant=True, masking_is_deletion=True, flops_exponent=2.0
  )

  num_heads: int
  head_dim: int | None = None
  use_bias: bool = True
  dropout: float = 0.0
  rotary: str = "none"
  rotary_base: float = 10000.0
  implementation: str = "auto"
  dtype: Dtype = jnp.float32
  layer: int = 0
  depth: int = 1

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, *, mask: jax.Array | None = None, train: bool
  ) -> jax.Array:
    """Mixes tokens.

    Args:
      x: (B, N, C).
      layout: the tokens' arrangement, for rotary positions.
      mask: boolean (B, N), True = may be attended. Masked tokens contribute exactly nothing.
      train: whether dropout is active; it draws from the stream "dropout".

    Returns:
      (B, N, C).

    Raises:
      ConfigError: unknown implementation, or "kernelized" with dropout.
    """
    width = x.shape[-1]
    head_dim = head_dim_of(width, self.num_heads, self.head_dim)
    q, k, v = query_key_value(x, self.num_heads, head_dim, dtype=self.dtype, use_bias=self.use_bias)
    q, k = turned(self.rotary, self.rotary_base, layout, q, k)
    if chosen(self.implementation, self.dropout) == "masked":
      key = self.make_rng("dropout") if train and self.dropout else None
      attend = None if mask is None else mask[:, None, None, :]  # (B, 1, 1, N)
      out, matrix = softmax.masked_attention(
        q, k, v, mask=attend, dropout_rate=self.dropout, key=key
      )
      self.sow("intermediates", "attention", matrix)
    else:
      out = softmax.kernelized_attention(q, k, v, key_mask=mask)
    return from_heads(width, dtype=self.dtype)(out)
