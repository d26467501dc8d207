"""The linear transformer: attention with the feature map elu + 1."""

from typing import ClassVar

import flax.linen as nn

from vitx import ops
from vitx.attention.base import AttentionModule, Properties
from vitx.layers.projections import from_heads
from vitx.ops.kernels.features import elu_features
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, TokenPlaces, Tokens


class LinearTransformer(AttentionModule):
  """Linear attention (Katharopoulos et al. 2020, section 3.2).

  It has the attributes of `AttentionModule` and no others. The rotation of `rotary` is applied to
  queries and keys before the feature map.
  """

  properties: ClassVar = Properties(
    accepts_causal=True, permutation_equivariant=True, masking_is_deletion=True
  )
  no_logits_reason: ClassVar = "keys are summed, as features, before any query meets them"

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
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False contribute nothing.

    `at` gives the indices of these tokens in the layout, ascending integers (N,); None means all.
    """
    q, k, v = self.project(x)  # (B, N, H, D)
    q, k = self.apply_positions(q, k, layout, at=at)
    q, k = elu_features(q), elu_features(k, mask=mask)
    out, matrix = ops.linear_attention(
      q, k, v, key_mask=mask, causal=self.causal, implementation=self.implementation
    )
    self.sow_matrix(matrix)
    return from_heads(x.shape[-1], dtype=self.dtype)(out)
