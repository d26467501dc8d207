"""Linformer: softmax attention over slots; a slot is a learned linear combination of all tokens."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx import ops
from vitx.attention.base import AttentionModule, Properties
from vitx.config.checks import Rate, SquaredSize
from vitx.layers.projections import from_heads
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, Tokens


def _uniform(key, shape, dtype):
  """Draws an array (N, M) uniformly within ±1/sqrt(M), as published."""
  return jax.random.uniform(key, shape, dtype, -1, 1) / shape[1] ** 0.5


class Linformer(AttentionModule):
  """Linformer attention (Wang et al. 2020), whose queries attend M slots instead of N tokens.

  The number of tokens is fixed at `init`.

  Attributes:
    slots: The number M of slots; a learned matrix (N, M) mixes the N tokens into them.
    share_projection: Whether keys and values are mixed by the same matrix (N, M).
    share_kv: Whether the keys, before rotation, are also the values; this implies
      `share_projection`.
    one_kv_head: Whether keys and values have one head, which all query heads share.
    dropout: The rate at which attention probabilities are dropped; only "masked" can drop them.

  `AttentionModule` has the other attributes. Keys are rotated before they are mixed into slots. The
  sown attention matrix is (B, H, N, M).
  """

  properties: ClassVar = Properties(fixed_length=True)
  no_logits_reason: ClassVar = "queries meet slots, each a mix of all keys"

  slots: SquaredSize = 64
  share_projection: bool = False
  share_kv: bool = False
  one_kv_head: bool = False
  dropout: Rate = 0.0

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask = None, train: bool
  ) -> Tokens:
    """Maps (B, N, C), with the N of `init`, to (B, N, C), and drops probabilities if `train`.

    Tokens whose `mask` (B, N) is False are left out of every slot.
    """
    length, width = x.shape[1:]
    kv_heads = 1 if self.one_kv_head else None
    q, k = self.to_heads(x, "query"), self.to_heads(x, "key", heads=kv_heads)
    v = k if self.share_kv else self.to_heads(x, "value", heads=kv_heads)
    q, k = self.apply_positions(q, k, layout)
    shape, shared = (length, self.slots), self.share_projection or self.share_kv
    key_slots = value_slots = self.param("key_slots", _uniform, shape, jnp.float32)
    if not shared:
      value_slots = self.param("value_slots", _uniform, shape, jnp.float32)
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
