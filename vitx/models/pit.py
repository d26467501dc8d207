"""The pooling-based vision transformer: stages with fewer and wider tokens."""

import flax.linen as nn
import jax

from vitx.blocks.downsampling import DepthwisePool
from vitx.models.stages import Depths, PerStage, StagedNetwork


class PiT(StagedNetwork):
  """PiT (Heo et al. 2021): a ViT whose token grid is pooled between stages.

  A field that may differ by stage has one value for all stages or one for each. The width of a head
  is the mixer's `head_dim` in all stages if this field is set, and otherwise C / H of the stage.

  Attributes:
    width: The number of channels C, by stage; each width is a multiple of the previous one.
    depth: The number of blocks L of each stage.
    num_heads: The number of heads H, by stage.
    mlp_dim: The hidden width of the MLPs, by stage.
  """

  width: PerStage = (128, 256)
  depth: Depths = (2, 2)
  num_heads: PerStage = 4
  mlp_dim: PerStage = 256

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes); `ViT` describes `images` and `train`."""
    widths, heads = self.per_stage("width"), self.per_stage("num_heads")
    mlp_dims = self.per_stage("mlp_dim")
    x, layout, pool = self.add_class_token(self.apply_stem(images, widths[0], train))
    x = self.enter_trunk(x, layout, train)
    for stage, width in enumerate(widths):
      if stage:
        pooling = DepthwisePool(width, dtype=self.dtype, name=f"stage_{stage}_pool")
        x, layout = pooling(x, layout)
      x = self.run_stage(x, layout, stage, heads[stage], mlp_dims[stage], train)
    return self.apply_head(pool(self.apply_norm(x), layout))
