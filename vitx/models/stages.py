"""The base class of networks of several stages, such as PiT, CvT and Swin."""

from collections.abc import Sequence

import jax

from vitx.config.checks import Depth, PositiveInt
from vitx.config.errors import ConfigError
from vitx.models.network import Network
from vitx.ops.layout import TokenLayout

# A field of this type has one value for all stages or one for each.
PerStage = PositiveInt | tuple[PositiveInt, ...]
Depths = tuple[Depth, ...]


class StagedNetwork(Network, kw_only=True):
  """The base class of networks of several stages, each of which is a sequence of blocks.

  Attributes:
    depth: The number of blocks L of each stage.
  """

  depth: Depths = ()

  def per_stage(self, field: str, stages: int | None = None) -> tuple[int, ...]:
    """Returns the values of a field for all stages; a single value is repeated.

    Args:
      field: The name of the field.
      stages: The number of values; `None` means the number of stages.
    """
    value = getattr(self, field)
    stages = len(self.depth) if stages is None else stages
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    values = values * stages if len(values) == 1 else values
    if not self.depth or len(values) != stages:
      raise ConfigError(
        f"model.{field}={value!r} must be one value, or one for each of {stages} stages."
      )
    return values

  def run_stage(
    self, x: jax.Array, layout: TokenLayout, stage: int, num_heads: int, mlp_dim: int, train: bool
  ) -> jax.Array:
    """Applies the blocks of a stage to tokens (B, N, C).

    Args:
      x: The tokens, (B, N, C).
      layout: The arrangement of all tokens.
      stage: The number of the stage, from 0.
      num_heads: The number of heads H of the stage.
      mlp_dim: The hidden width of the MLPs of the stage.
      train: Whether dropout and stochastic depth are active.
    """
    first = sum(self.depth[:stage])
    return self.run_blocks(
      x,
      layout,
      layers=range(first, first + self.depth[stage]),
      depth=sum(self.depth),
      num_heads=num_heads,
      mlp_dim=mlp_dim,
      train=train,
      name=f"stage_{stage}_block",
    )
