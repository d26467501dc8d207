"""The linear transformer: attention with the feature map elu + 1."""

from typing import ClassVar

import flax.linen as nn
import jax

from vitx import ops
from vitx.attention.base import AttentionModule
from vitx.attention.contract import Properties
from vitx.layers.projections import from_heads
from vitx.ops.kernels.features import elu_features
from vitx.ops.layout import TokenLayout


class LinearTransformer(AttentionModule):
  """Linear attention (Katharopoulos et al. 2020, section 3.2).

  `AttentionModule` has the attributes; queries and keys are rotated before the feature map.
  """

  properties: ClassVar = Properties(
    accepts_causal=True, permutation_equivariant=True, masking_is_deletion=True
  )
  without_logits: ClassVar = "keys are summed, as features, before any query meets them"

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    layout: TokenLayout,
    *,
    mask: jax.Array | None = None,
    at: jax.Array | None = None,
    train: bool,
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False contribute nothing.

    `at`, integers (N,), ascending, has the places in the layout of these tokens; None means all
    places.
    """
    self.is_decoding(x, at)  # decoding is refused: sums over keys are not cached
    q, k, v = self.project(x)  # (B, N, H, D)
    q, k = self.apply_positions(q, k, layout, at=at)
    q, k = elu_features(q), elu_features(k, mask=mask)
    out, matrix = ops.linear_attention(
      q, k, v, causal=self.causal, implementation=self.implementation
    )
    self.sow_matrix(matrix)
    return from_heads(x.shape[-1], dtype=self.dtype)(out)
