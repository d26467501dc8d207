"""The pooling-based vision transformer: stages with fewer and wider tokens."""

from collections.abc import Sequence

import flax.linen as nn
import jax

from vitx.blocks.downsampling import DepthwisePool
from vitx.layers.dropout import Dropout
from vitx.models.network import Network, per_stage, stage_layers


class PiT(Network):
  """PiT (Heo et al. 2021): a ViT whose token grid is pooled between stages.

  What may differ by stage is one value for all or one for each. The heads' dim stays (the mixer's
  `head_dim`) or grows with the width, as the config says.

  Attributes:
    width: C of the stages, each a multiple of the one before.
    depth: L of each stage.
    num_heads: H of the stages.
    mlp_dim: hidden width of the MLPs, of the stages.
    others: see `Network`.
  """

  width: int | Sequence[int] = (128, 256)
  depth: Sequence[int] = (2, 2)
  num_heads: int | Sequence[int] = 4
  mlp_dim: int | Sequence[int] = 256

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes); arguments as for `ViT`.

    Raises:
      ConfigError: a sequence of another length than there are stages, or widths that do not divide.
    """
    stages = len(self.depth)
    widths = per_stage(self.width, stages, "width")
    heads = per_stage(self.num_heads, stages, "num_heads")
    mlp_dims = per_stage(self.mlp_dim, stages, "mlp_dim")
    grid = self.stem(width=widths[0], dtype=self.dtype, name="stem")(images)
    x, layout, pool = self.with_class_token(grid)
    x, token_mixer = self.positioned(x, layout)
    x = Dropout(self.dropout)(x, train)
    for stage, layers in enumerate(stage_layers(self.depth)):
      if stage:
        pooling = DepthwisePool(widths[stage], dtype=self.dtype, name=f"stage_{stage}_pool")
        x, layout = pooling(x, layout)
      x = self.run_blocks(
        x,
        layout,
        token_mixer,
        train,
        layers=layers,
        depth=sum(self.depth),
        num_heads=heads[stage],
        mlp_dim=mlp_dims[stage],
        name=f"stage_{stage}_block",
      )
    x = self.norm(dtype=self.dtype, name="norm")(x)
    return self.logits(pool(x, layout))
