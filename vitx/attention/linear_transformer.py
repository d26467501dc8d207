"""Linear transformer: attention with the feature map elu + 1."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.choices import chosen
from vitx.attention.positions import turned
from vitx.attention.projections import Dtype, from_heads, head_dim_of, query_key_value
from vitx.attention.properties import Properties
from vitx.ops import linear
from vitx.ops.features import elu_features
from vitx.ops.layout import TokenLayout


class LinearTransformer(nn.Module):
  """Linear attention (Katharopoulos et al. 2020, section 3.2).

  Attributes:
    num_heads: H.
    head_dim: D; none: C / H.
    use_bias: of the query, key and value projections.
    causal: a token attends the tokens up to its own position.
    rotary: "none", "sequence" or "axial" rotation of queries and keys, before the feature map.
    rotary_base: of the frequencies.
    implementation: "masked" sows the matrix as intermediate `attention` (B, H, N, N).
    dtype: of the projections; features and their products are float32.
    layer, depth: the position of the block that this mixer serves.
  """

  properties: ClassVar = Properties(permutation_equivariant=True, masking_is_deletion=True)

  num_heads: int
  head_dim: int | None = None
  use_bias: bool = True
  causal: bool = False
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
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False contribute nothing."""
    width = x.shape[-1]
    head_dim = head_dim_of(width, self.num_heads, self.head_dim)
    q, k, v = query_key_value(x, self.num_heads, head_dim, dtype=self.dtype, use_bias=self.use_bias)
    q, k = turned(self.rotary, self.rotary_base, layout, q, k)
    q, k = elu_features(q), elu_features(k, mask=mask)
    if chosen(self.implementation) == "masked":
      out, matrix = linear.masked_linear_attention(q, k, v, causal=self.causal)
      self.sow("intermediates", "attention", matrix)
    else:
      out = linear.linear_attention(q, k, v, causal=self.causal)
    return from_heads(width, dtype=self.dtype)(out)
