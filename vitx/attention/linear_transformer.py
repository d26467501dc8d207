"""Linear transformer: attention with the feature map elu + 1."""

from typing import ClassVar

import flax.linen as nn
import jax

from vitx.attention.base import AttentionModule
from vitx.attention.contract import Properties
from vitx.layers.projections import from_heads
from vitx.ops.kernels import linear
from vitx.ops.kernels.features import elu_features
from vitx.ops.layout import TokenLayout


class LinearTransformer(AttentionModule):
  """Linear attention (Katharopoulos et al. 2020, section 3.2).

  Attributes:
    causal: a token attends the tokens up to its own position.
    others: see `AttentionModule`; rotation comes before the feature map.
  """

  properties: ClassVar = Properties(
    permutation_equivariant=True, masking_is_deletion=True, masked_up_to=64
  )
  without_logits: ClassVar = "keys are summed, as features, before any query meets them"

  causal: bool = False

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, *, mask: jax.Array | None = None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False contribute nothing."""
    q, k, v = self.projected(x)  # (B, N, H, D)
    q, k = self.positioned(q, k, layout)
    q, k = elu_features(q), elu_features(k, mask=mask)
    if self.picked(x) == "masked":
      out, matrix = linear.masked_linear_attention(q, k, v, causal=self.causal)
      self.sow("intermediates", "attention", matrix)
    else:
      out = linear.linear_attention(q, k, v, causal=self.causal)
    return from_heads(x.shape[-1], dtype=self.dtype)(out)
