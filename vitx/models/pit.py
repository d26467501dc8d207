"""The pooling-based vision transformer: stages with fewer and wider tokens."""

import flax.linen as nn
import jax

from vitx.blocks.downsampling import DepthwisePool
from vitx.models.network import Network
from vitx.models.stages import Depths, PerStage, per_stage, stage_layers


class PiT(Network):
  """PiT (Heo et al. 2021): a ViT whose token grid is pooled between stages.

  Fields that may differ by stage have one value for all stages or one for each. The width of a head
  is constant if the mixer's `head_dim` is set; otherwise it is C / H of the stage.

  Attributes:
    width: The number of channels C, by stage, each a multiple of the one before.
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
    """Returns float32 logits (B, num_classes).

    Args:
      images: The images, (B, height, width, channels), normalized floats.
      train: Whether dropout and stochastic depth (stream "dropout") are active and batch statistics
        (collection "batch_stats", then mutable) are taken from the batch.

    Raises:
      ConfigError: If a sequence has another length than there are stages, or if widths do not
        divide.
    """
    stages = stage_layers(self.depth)
    widths = per_stage(self.width, len(stages), "width")
    heads = per_stage(self.num_heads, len(stages), "num_heads")
    mlp_dims = per_stage(self.mlp_dim, len(stages), "mlp_dim")
    x, layout, pool = self.add_class_token(self.apply_stem(images, widths[0], train))
    x = self.enter_trunk(x, layout, train)
    for stage, layers in enumerate(stages):
      if stage:
        pooling = DepthwisePool(widths[stage], dtype=self.dtype, name=f"stage_{stage}_pool")
        x, layout = pooling(x, layout)
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
    return self.apply_head(pool(self.apply_norm(x), layout))
