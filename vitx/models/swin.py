"""The shifted-window transformer: attention in windows, and a grid that is merged step by step."""

from collections.abc import Sequence
from typing import ClassVar

import flax.linen as nn
import jax

from vitx.blocks.patch_merging import PatchMerging
from vitx.errors import ConfigError
from vitx.layers.dropout import Dropout
from vitx.models.network import Network, per_stage, stage_layers, with_defaults


class Swin(Network):
  """Swin (Liu et al. 2021): windows that are shifted in every other layer, four stages.

  Each stage has a quarter of the tokens of the one before, twice as wide. The bias by relative
  position belongs to the token mixer (`relative_bias="window"`); there are no other positions.
  Layers are counted over the whole network, so that depths should be even, as the published are.

  Attributes:
    width: C of the first stage.
    depth: L of each stage.
    num_heads: H of the stages, one for all or one for each.
    mlp_ratio: hidden width of the MLPs over C.
    others: see `Network`.
  """

  PARTS: ClassVar[dict[str, tuple]] = with_defaults(
    Network.PARTS,
    posemb="none",
    pool="mean",
    norm={"name": "layer", "epsilon": 1e-5},
    token_mixer={"name": "shifted_window", "relative_bias": "window"},
    initialization="truncated_normal",
  )

  width: int = 96
  depth: Sequence[int] = (2, 2, 6, 2)
  num_heads: int | Sequence[int] = (3, 6, 12, 24)
  mlp_ratio: int = 4

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes); arguments as for `ViT`.

    Raises:
      ConfigError: a class token, or a sequence of another length than there are stages.
    """
    heads = per_stage(self.num_heads, len(self.depth), "num_heads")
    grid = self.stem(width=self.width, dtype=self.dtype, name="stem")(images)
    grid = self.norm(dtype=self.dtype, name="stem_norm")(grid)
    x, layout, pool = self.with_class_token(grid)
    if layout.prefix:
      raise ConfigError(
        "model.pool puts a token in front of the grid, whose cells Swin merges between its stages;"
        " use model.pool='mean' or 'sequence'"
      )
    x, token_mixer = self.positioned(x, layout)
    x = Dropout(self.dropout)(x, train)
    for stage, layers in enumerate(stage_layers(self.depth)):
      if stage:
        merge = PatchMerging(self.norm, dtype=self.dtype, name=f"stage_{stage}_merge")
        x, layout = merge(x, layout)
      x = self.run_blocks(
        x,
        layout,
        token_mixer,
        train,
        layers=layers,
        depth=sum(self.depth),
        num_heads=heads[stage],
        mlp_dim=self.mlp_ratio * x.shape[-1],
        name=f"stage_{stage}_block",
      )
    x = self.norm(dtype=self.dtype, name="norm")(x)
    return self.logits(pool(x, layout))
