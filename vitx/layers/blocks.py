"""Blocks: one token mixer and one channel MLP, arranged."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.layers.dropout import Dropout
from vitx.layers.mlp import MLP
from vitx.ops.layout import TokenLayout

Dtype = jax.typing.DTypeLike


def drop_rate(last: float, layer: int, depth: int) -> float:
  """Stochastic depth's rate for a block: linear from 0 to `last` (Huang et al. 2016, section 3)."""
  return last * layer / max(depth - 1, 1)


class PreNormBlock(nn.Module):
  """x + mixer(norm(x)), then x + MLP(norm(x)) (Dosovitskiy et al. 2021, equations 2 and 3).

  Attributes:
    token_mixer: makes the mixer; called with `name`.
    mlp_dim: hidden width of the MLP.
    dropout: on both residual branches and inside the MLP.
    stochastic_depth: probability that a branch is dropped for an example.
    dtype: of the computation; normalisation statistics are float32.
  """

  token_mixer: Callable[..., nn.Module]
  mlp_dim: int
  dropout: float = 0.0
  stochastic_depth: float = 0.0
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, mask: jax.Array | None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); `mask` is boolean (B, N), True = may be attended."""
    y = nn.LayerNorm(dtype=self.dtype, name="mixer_norm")(x)
    y = self.token_mixer(name="token_mixer")(y, layout, mask=mask, train=train)
    x = x + self._branch(Dropout(self.dropout)(y, train), train)
    y = nn.LayerNorm(dtype=self.dtype, name="mlp_norm")(x)
    y = MLP(self.mlp_dim, self.dropout, dtype=self.dtype, name="mlp")(y, train)
    return x + self._branch(y, train)

  def _branch(self, y: jax.Array, train: bool) -> jax.Array:
    return Dropout(self.stochastic_depth, whole_example=True)(y, train)
