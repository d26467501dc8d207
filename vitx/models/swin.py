"""Swin, the shifted-window transformer: attention in windows, and a grid that shrinks by stage."""

from typing import Annotated, ClassVar

import flax.linen as nn
import jax

from vitx.blocks.patch_merging import PatchMerging
from vitx.config.checks import PositiveInt, Range
from vitx.models.stages import Depths, PerStage, StagedNetwork
from vitx.models.trunk import Parts, with_defaults


class Swin(StagedNetwork):
  """Swin (Liu et al. 2021): four stages, with windows that are shifted in every other layer.

  Each stage has a quarter of the tokens of the previous stage, and twice the channels. The bias by
  relative position belongs to the token mixer (`relative_bias="window"`); there are no other
  positions. Layers are counted over the whole network, and odd ones have shifted windows. So depths
  should be even, like the published ones.

  Attributes:
    width: The number of channels C of the first stage.
    depth: The number of blocks L of each stage.
    num_heads: The number of heads H, one for all stages or one for each.
    mlp_ratio: The ratio of the MLPs' hidden width to C.
  """

  PARTS: ClassVar[Parts] = with_defaults(
    StagedNetwork.PARTS,
    posemb="none",
    pool="mean",
    norm={"name": "layer", "epsilon": 1e-5},
    token_mixer={"name": "shifted_window", "relative_bias": "window"},
    initialization="truncated_normal",
  )

  width: PositiveInt = 96
  depth: Depths = (2, 2, 6, 2)
  num_heads: PerStage = (3, 6, 12, 24)
  mlp_ratio: Annotated[int, Range("[1, 100]")] = 4

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes); `ViT` describes `images` and `train`."""
    heads = self.per_stage("num_heads")
    grid = self.apply_norm(self.apply_stem(images, self.width, train), "stem_norm")
    x, layout, pool = self.add_class_token(grid)
    x = self.enter_trunk(x, layout, train)
    for stage, num_heads in enumerate(heads):
      if stage:
        merge = PatchMerging(self.norm, dtype=self.dtype, name=f"stage_{stage}_merge")
        x, layout = merge(x, layout)
      mlp_dim = self.mlp_ratio * x.shape[-1]
      x = self.run_stage(x, layout, stage, num_heads, mlp_dim, train)
    return self.apply_head(pool(self.apply_norm(x), layout))
