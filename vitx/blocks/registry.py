"""Blocks: one token mixer and one channel MLP, arranged."""

import flax.linen as nn
import jax

from vitx.blocks.base_block import Block
from vitx.blocks.parallel import ParallelBlock
from vitx.blocks.simplified import SASBlock, SASParallelBlock, SimplifiedBlock
from vitx.blocks.vanilla import SkiplessBlock, VanillaBlock
from vitx.ops.layout import TokenLayout

# Set by the model, not by the config entry of a block.
FROM_MODEL = ("token_mixer", "norm", "mlp_dim", "dropout", "stochastic_depth", "dtype", "name")


def drop_rate(last: float, layer: int, depth: int) -> float:
  """Stochastic depth's rate for a block: linear from 0 to `last` (Huang et al. 2016, section 3)."""
  return last * layer / max(depth - 1, 1)


class PreNormBlock(Block):
  """x + mixer(norm(x)), then x + MLP(norm(x)) (Dosovitskiy et al. 2021, equations 2 and 3).

  Attributes:
    mixer_dropout: on the mixer's branch, if another rate than `dropout`.
    others: see `Block`.
  """

  mixer_dropout: float | None = None

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, mask: jax.Array | None, train: bool
  ) -> jax.Array:
    """See `Block`."""
    y = self.normalized(x, "mixer_norm")
    x = x + self.branch(self.mixed(y, layout, mask, train, self.mixer_dropout), train)
    y = self.normalized(x, "mlp_norm")
    return self.stream(x, y) + self.branch(self.through_mlp(y, train), train)

  def stream(self, x: jax.Array, normalized: jax.Array) -> jax.Array:
    """What the MLP's branch is added to."""
    return x


class NormalizedStreamBlock(PreNormBlock):
  """x + mixer(norm(x)), then y = norm(x), y + MLP(y): CCT's (Hassani et al. 2021, their code).

  The second normalization sits on the residual stream itself.
  """

  def stream(self, x: jax.Array, normalized: jax.Array) -> jax.Array:
    return normalized


BLOCKS = {
  "normalized_stream": NormalizedStreamBlock,
  "parallel": ParallelBlock,
  "pre_norm": PreNormBlock,
  "sas": SASBlock,
  "sas_p": SASParallelBlock,
  "simplified": SimplifiedBlock,
  "skipless": SkiplessBlock,
  "vanilla": VanillaBlock,
}
