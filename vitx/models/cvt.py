"""The convolutional vision transformer: stages of a convolutional embedding and blocks."""

from typing import ClassVar

import flax.linen as nn
import jax

from vitx.config.checks import PositiveInt
from vitx.config.errors import ConfigError
from vitx.layers.convolution import Conv
from vitx.models.network import Network
from vitx.models.stages import Depths, PerStage, per_stage, stage_layers
from vitx.models.trunk import Parts, with_defaults
from vitx.ops.layout import TokenLayout


class CvT(Network):
  """CvT (Wu et al. 2021): the token grid is convolved between stages, and in the attention.

  Fields that may differ by stage have one value for all stages or one for each. The stem is the
  embedding of the first stage. Another `token_mixer` removes the convolutions and batch statistics
  of the attention, as in ViX's CvP, CvL and CvN. There is no class token and no normalization
  before the head, as in vit-pytorch 0.19.6.

  Attributes:
    width: The number of channels C, by stage.
    depth: The number of blocks L of each stage.
    num_heads: The number of heads H, by stage.
    mlp_dim: The hidden width of the MLPs, by stage.
    kernel: The side of the convolutions between stages.
    strides: The strides of the convolutions between stages, one fewer than there are stages.
  """

  PARTS: ClassVar[Parts] = with_defaults(
    Network.PARTS,
    stem={"name": "hybrid", "channels": ()},
    posemb="none",
    pool="mean",
    norm="channel",
    token_mixer={"name": "cvt", "head_dim": 64},
  )

  width: PerStage = 128
  depth: Depths = (1, 1, 2)
  num_heads: PerStage = 4
  mlp_dim: PerStage = 256
  kernel: PositiveInt = 3
  strides: PerStage = 1

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes).

    Args:
      images: The images, (B, height, width, channels), normalized floats.
      train: Whether dropout and stochastic depth (stream "dropout") are active and batch statistics
        (collection "batch_stats", then mutable) are taken from the batch.

    Raises:
      ConfigError: If there is a class token, or if a sequence has another length than there are
        stages.
    """
    stages = stage_layers(self.depth)
    widths = per_stage(self.width, len(stages), "width")
    heads = per_stage(self.num_heads, len(stages), "num_heads")
    mlp_dims = per_stage(self.mlp_dim, len(stages), "mlp_dim")
    strides = per_stage(self.strides, len(stages) - 1, "strides")
    pool = self.pool(name="pool")
    if pool.prefix:
      raise ConfigError(
        "model.pool='cls' puts a token in front of the grid, which CvT convolves between its"
        " stages; use model.pool='mean' or 'sequence'"
      )
    grid = self.apply_stem(images, widths[0], train)
    for stage, layers in enumerate(stages):
      if stage:
        grid = self._embed(grid, stage, widths[stage], strides[stage - 1])
      grid = self.apply_norm(grid, f"stage_{stage}_norm")
      layout = TokenLayout(grid.shape[1:3])
      x = grid.reshape(grid.shape[0], layout.length, grid.shape[-1])  # (B, N, C)
      if stage == 0:
        x = self.enter_trunk(x, layout, train)
      x = self.run_blocks(
        x,
        layout,
        layers=layers,
        depth=sum(self.depth),
        num_heads=heads[stage],
        mlp_dim=mlp_dims[stage],
        train=train,
        name=f"stage_{stage}_block",
      )
      grid = x.reshape(grid.shape)
    return self.apply_head(pool(x, layout))

  def _embed(self, grid: jax.Array, stage: int, width: int, stride: int) -> jax.Array:
    """Convolves the grid (B, rows, columns, C) in front of a later stage."""
    return Conv(
      width,
      (self.kernel, self.kernel),
      (stride, stride),
      padding=self.kernel // 2,
      dtype=self.dtype,
      name=f"stage_{stage}_embed",
    )(grid)
