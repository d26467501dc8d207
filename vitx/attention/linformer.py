"""Linformer: softmax attention over slots that mix the tokens."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx import ops
from vitx.attention.base import AttentionModule
from vitx.attention.contract import Properties
from vitx.attention.positions import check_length
from vitx.config.checks import PositiveInt, Rate
from vitx.layers.projections import from_heads, to_heads
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, Tokens


def _uniform(key, shape):
  """Draws within 1/sqrt(M), as published."""
  return jax.random.uniform(key, shape, jnp.float32, -1, 1) / shape[1] ** 0.5


class Linformer(AttentionModule):
  """Linformer attention (Wang et al. 2020). The number of tokens is fixed at `init`.

  Attributes:
    slots: M, to which N tokens are mixed.
    share_projection: keys and values are mixed by the same matrix.
    share_kv: the values are the keys themselves, which implies `share_projection`; without
      rotation, where there is one.
    one_kv_head: keys and values have one head, which all query heads read.
    dropout: of the attention probabilities; only "masked" can draw it.

  `AttentionModule` has the other attributes; keys are rotated before they are mixed, and the matrix
  is (B, H, N, M).
  """

  properties: ClassVar = Properties(fixed_length=True)
  without_logits: ClassVar = "queries meet slots, each a mix of all keys"

  slots: PositiveInt = 64
  share_projection: bool = False
  share_kv: bool = False
  one_kv_head: bool = False
  dropout: Rate = 0.0

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask | None = None, train: bool
  ) -> Tokens:
    """Mixes tokens.

    Args:
      x: (B, N, C), N as at `init`.
      layout: the tokens' arrangement, for rotary positions.
      mask: boolean (B, N), True = may be attended. Masked tokens are left out of every slot.
      train: whether dropout is active; it draws from the stream "dropout".

    Returns:
      (B, N, C).

    Raises:
      ConfigError: another N than at `init`; "kernelized" with dropout.
    """
    length, width = x.shape[1:]
    head_dim = self.resolve_head_dim(x)
    kv_heads = 1 if self.one_kv_head else self.num_heads

    def project(heads: int, name: str) -> jax.Array:
      return to_heads(heads, head_dim, name, dtype=self.dtype, use_bias=self.use_bias)(x)

    q, k = project(self.num_heads, "query"), project(kv_heads, "key")
    v = k if self.share_kv else project(kv_heads, "value")
    q, k = self.apply_positions(q, k, layout)
    key_slots = self._slots("key_slots", length)
    shared = self.share_projection or self.share_kv
    value_slots = key_slots if shared else self._slots("value_slots", length)
    out, matrix = ops.linformer_attention(
      q,
      k,
      v,
      key_slots,
      value_slots,
      key_mask=mask,
      dropout=self.dropout,
      key=self.dropout_key(train),
      implementation=self.implementation,
    )
    self.sow_matrix(matrix)
    return from_heads(width, dtype=self.dtype)(out)

  def _slots(self, name: str, length: int) -> jax.Array:
    if self.has_variable("params", name):
      check_length(self.get_variable("params", name).shape, length, name)
    return self.param(name, _uniform, (length, self.slots))
