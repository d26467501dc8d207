"""CvT, the convolutional vision transformer: stages that begin with a convolution."""

from typing import ClassVar

import flax.linen as nn
import jax

from vitx.blocks.stems import WindowSide, square_convolution
from vitx.config.errors import ConfigError
from vitx.models.stages import Depths, PerStage, StagedNetwork
from vitx.models.trunk import Parts, with_defaults
from vitx.ops.layout import TokenLayout


class CvT(StagedNetwork):
  """CvT (Wu et al. 2021): stages with a convolution between them, and convolutional attention.

  A field that may differ by stage has one value for all stages or one for each. The stem is the
  convolution of the first stage. Only CvT's own attention has convolutions and batch statistics:
  with any other `token_mixer` there are none, as in the variants CvP, CvL and CvN of ViX (Jeevan
  and Sethi 2022). There is no class token and no normalization before the head, as in vit-pytorch
  0.19.6.

  Attributes:
    width: The number of channels C, by stage.
    depth: The number of blocks L of each stage.
    num_heads: The number of heads H, by stage.
    mlp_dim: The hidden width of the MLPs, by stage.
    kernel: The side of the convolutions between stages.
    strides: The strides of the convolutions between stages, one fewer than there are stages.
  """

  PARTS: ClassVar[Parts] = with_defaults(
    StagedNetwork.PARTS,
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
  kernel: WindowSide = 3
  strides: PerStage = 1

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes); `ViT` describes `images` and `train`."""
    widths, heads = self.per_stage("width"), self.per_stage("num_heads")
    mlp_dims = self.per_stage("mlp_dim")
    strides = self.per_stage("strides", len(self.depth) - 1)
    pool = self.pool(name="pool")
    if pool.prefix:
      raise ConfigError("model.pool needs a class token, which CvT has not; use model.pool='mean'.")
    grid = self.apply_stem(images, widths[0], train)
    for stage, width in enumerate(widths):
      if stage:
        fields = {"dtype": self.dtype, "name": f"stage_{stage}_embed"}
        grid = square_convolution(width, self.kernel, strides[stage - 1], **fields)(grid)
      grid = self.apply_norm(grid, f"stage_{stage}_norm")
      layout = TokenLayout(grid.shape[1:3])
      x = grid.reshape(grid.shape[0], layout.length, grid.shape[-1])  # (B, N, C)
      if stage == 0:
        x = self.enter_trunk(x, layout, train)
      x = self.run_stage(x, layout, stage, heads[stage], mlp_dims[stage], train)
      grid = x.reshape(grid.shape)
    return self.apply_head(pool(x, layout))
