"""Softmax attention."""

import math
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.base import AttentionModule, Properties
from vitx.config.checks import Rate, SquaredSize
from vitx.layers.projections import from_heads
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, TokenPlaces, Tokens


class SoftmaxAttention(AttentionModule):
  """Multi-head softmax attention (Vaswani et al. 2017, section 3.2).

  Attributes:
    value_dim: The head width of the values; None means D, as for queries and keys.
    key_bias: Whether the projection of the keys has a bias if `use_bias` is set. This bias changes
      the attention only with rotary positions; DINOv3 does not have it.
    value_bias: Whether the output projection has a bias; the value projection has one if
      `use_bias` is set too.
    qk_norm: Whether queries and keys are layer-normalized, without bias (Dehghani et al. 2023).
    dropout: The rate at which attention probabilities are dropped; only "masked" can drop them.

  `AttentionModule` has the other attributes.
  """

  properties: ClassVar = Properties(
    accepts_causal=True, permutation_equivariant=True, masking_is_deletion=True, flops_exponent=2.0
  )

  decodes: ClassVar = True
  also_returns: ClassVar = ("class_attention", "keys")

  value_dim: SquaredSize | None = None
  key_bias: bool = True
  value_bias: bool = True
  qk_norm: bool = False
  dropout: Rate = 0.0

  @nn.compact
  def __call__(
    self,
    x: Tokens,
    layout: TokenLayout,
    *,
    mask: TokenMask = None,
    at: TokenPlaces = None,
    also: str = "",
    train: bool,
  ) -> Any:
    """Mixes tokens.

    Args:
      x: The tokens, (B, N, C).
      layout: The arrangement of the tokens, for positions.
      mask: A boolean mask (B, N), True = may be attended. Masked tokens contribute exactly nothing.
        Or the sizes of the tokens, float32 (B, N): a token of size s is attended as s equal tokens.
      at: The indices of these tokens in the layout, ascending integers (N,); None means all. If the
        collection "cache" is mutable, N must be 1, and the token also attends the earlier tokens in
        the cache.
      also: A second result: "class_attention", "keys", or "" for none.
      train: Whether dropout is active; it draws from the stream "dropout".

    Returns:
      The mixed tokens (B, N, C). The second result is the attention of the first token, float32
      (B, N), or the keys before positions, float32 (B, N, D); both are means over the heads.
    """
    q, k, v = self.project(x, self.value_dim, self.value_bias, self.key_bias)  # (B, N, H, D)
    if self.qk_norm:
      norm = partial(nn.LayerNorm, use_bias=False, dtype=self.dtype)
      q, k = norm(name="query_norm")(q), norm(name="key_norm")(k)
    scale = 1 / math.sqrt(q.shape[-1])
    keys = jnp.mean(k, axis=2, dtype=jnp.float32) if also == "keys" else None
    q, k = self.apply_positions(q, k, layout, scale, at)
    if mask is not None and mask.dtype != bool:
      q, k, mask = *_weigh_keys(q, k, mask, scale), None
    if at is not None and self.is_decoding(x, at):
      out = self.decode(q, k, v, None, layout, scale, at)
    else:
      out, matrix = self.softmax_attention(q, k, v, key_mask=mask, scale=scale, train=train)
      self.sow_matrix(matrix)
    out = from_heads(x.shape[-1], dtype=self.dtype, use_bias=self.value_bias)(out)
    if also == "class_attention":
      return out, self.class_attention(q, k, scale, mask)
    return (out, keys) if also else out


def _weigh_keys(
  q: jax.Array, k: jax.Array, sizes: jax.Array, scale: float
) -> tuple[jax.Array, jax.Array]:
  """Adds a channel to queries and keys so that a key of size s has the weight of s equal keys.

  (Bolya et al. 2023, equation 1.) The sizes are positive, (B, N).
  """
  logs = jnp.broadcast_to(jnp.log(sizes)[..., None, None] / scale, (*k.shape[:3], 1))
  ones = jnp.ones((*q.shape[:3], 1), q.dtype)
  return jnp.concatenate([q, ones], -1), jnp.concatenate([k, logs.astype(k.dtype)], -1)
