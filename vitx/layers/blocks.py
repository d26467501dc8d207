"""Blocks: one token mixer and one channel MLP, arranged."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.layers.dropout import Dropout
from vitx.layers.mlp import MLP
from vitx.layers.parallel_block import ParallelBlock
from vitx.layers.simplified_block import SASBlock, SASParallelBlock, SimplifiedBlock
from vitx.layers.vanilla_block import SkiplessBlock, VanillaBlock
from vitx.ops.layout import TokenLayout

Dtype = jax.typing.DTypeLike

# Set by the model, not by the config entry of a block.
FROM_MODEL = ("token_mixer", "norm", "mlp_dim", "dropout", "stochastic_depth", "dtype", "name")


def drop_rate(last: float, layer: int, depth: int) -> float:
  """Stochastic depth's rate for a block: linear from 0 to `last` (Huang et al. 2016, section 3)."""
  return last * layer / max(depth - 1, 1)


class PreNormBlock(nn.Module):
  """x + mixer(norm(x)), then x + MLP(norm(x)) (Dosovitskiy et al. 2021, equations 2 and 3).

  Attributes:
    token_mixer: makes the mixer; called with `name`.
    mlp_dim: hidden width of the MLP.
    norm: makes the normalisations; called with `dtype` and `name`.
    dropout: on both residual branches and inside the MLP.
    mixer_dropout: on the mixer's branch, if another rate than `dropout`.
    stochastic_depth: probability that a branch is dropped for an example.
    dtype: of the computation; normalisation statistics are float32.
  """

  token_mixer: Callable[..., nn.Module]
  mlp_dim: int
  norm: Callable[..., nn.Module] = nn.LayerNorm
  dropout: float = 0.0
  mixer_dropout: float | None = None
  stochastic_depth: float = 0.0
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, mask: jax.Array | None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); `mask` is boolean (B, N), True = may be attended."""
    y = self.norm(dtype=self.dtype, name="mixer_norm")(x)
    y = self.token_mixer(name="token_mixer")(y, layout, mask=mask, train=train)
    rate = self.dropout if self.mixer_dropout is None else self.mixer_dropout
    x = x + self.branch(Dropout(rate)(y, train), train)
    y = self.norm(dtype=self.dtype, name="mlp_norm")(x)
    return self.stream(x, y) + self.branch(
      MLP(self.mlp_dim, self.dropout, dtype=self.dtype, name="mlp")(y, train), train
    )

  def stream(self, x: jax.Array, normalised: jax.Array) -> jax.Array:
    """What the MLP's branch is added to."""
    return x

  def branch(self, y: jax.Array, train: bool) -> jax.Array:
    """A residual branch, dropped for some examples in training."""
    return Dropout(self.stochastic_depth, whole_example=True)(y, train)


class NormalisedStreamBlock(PreNormBlock):
  """x + mixer(norm(x)), then y = norm(x), y + MLP(y): CCT's (Hassani et al. 2021, their code).

  The second normalisation sits on the residual stream itself.
  """

  def stream(self, x: jax.Array, normalised: jax.Array) -> jax.Array:
    return normalised


BLOCKS = {
  "normalised_stream": NormalisedStreamBlock,
  "parallel": ParallelBlock,
  "pre_norm": PreNormBlock,
  "sas": SASBlock,
  "sas_p": SASParallelBlock,
  "simplified": SimplifiedBlock,
  "skipless": SkiplessBlock,
  "vanilla": VanillaBlock,
}
