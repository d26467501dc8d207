"""The parallel block: token mixer and MLP side by side."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.layers.dropout import Dropout
from vitx.layers.mlp import MLP
from vitx.ops.layout import TokenLayout

Dtype = jax.typing.DTypeLike


class ParallelBlock(nn.Module):
  """y = norm(x), then x + mixer(y) + MLP(y), one normalisation for both.

  GPT-J's block (Wang and Komatsuzaki 2021). ViT-22B's (Dehghani et al. 2023, section 2.1) is this
  with normalised queries and keys and no biases in their projections: token mixer
  `dict(name="softmax", use_bias=False, normalise=True)`.

  Attributes:
    token_mixer, mlp_dim, norm, dropout, stochastic_depth, dtype: as in `PreNormBlock`; the two
      branches are dropped independently.
    separate_norms: a normalisation for each branch: GPT-NeoX's (Black et al. 2022, section 2.1).
  """

  token_mixer: Callable[..., nn.Module]
  mlp_dim: int
  norm: Callable[..., nn.Module] = nn.LayerNorm
  dropout: float = 0.0
  stochastic_depth: float = 0.0
  separate_norms: bool = False
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, mask: jax.Array | None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); `mask` is boolean (B, N), True = may be attended."""

    def branch(y: jax.Array) -> jax.Array:
      return Dropout(self.stochastic_depth, whole_example=True)(y, train)

    before = self.norm(dtype=self.dtype, name="norm")(x)
    mixed = self.token_mixer(name="token_mixer")(before, layout, mask=mask, train=train)
    if self.separate_norms:
      before = self.norm(dtype=self.dtype, name="mlp_norm")(x)
    mlp = MLP(self.mlp_dim, self.dropout, dtype=self.dtype, name="mlp")(before, train)
    return x + branch(Dropout(self.dropout)(mixed, train)) + branch(mlp)
