"""The convolutional vision transformer: stages, each a convolutional embedding and blocks."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import flax.linen as nn
import jax

from vitx.errors import ConfigError
from vitx.layers.dropout import Dropout
from vitx.models.network import Network, per_stage, stage_layers, with_defaults
from vitx.ops.layout import TokenLayout


class CvT(Network):
  """CvT (Wu et al. 2021): the token grid is convolved between stages, and in the attention.

  What may differ by stage is one value for all or one for each. The stem is the first stage's
  embedding. With another `token_mixer` the convolutions in the attention and their batch statistics
  are gone, as in ViX's CvP, CvL and CvN. No class token and no normalization before the head, as in
  vit-pytorch 0.19.6.

  Attributes:
    width: C of the stages.
    depth: L of each stage.
    num_heads: H of the stages.
    mlp_dim: hidden width of the MLPs, of the stages.
    kernel: side of the convolutions between stages.
    strides: of the convolutions between stages, one fewer than there are stages.
    others: see `Network`.
  """

  PARTS: ClassVar[dict[str, tuple]] = with_defaults(
    Network.PARTS,
    stem={"name": "hybrid", "channels": ()},
    posemb="none",
    pool="mean",
    norm="channel",
    token_mixer={"name": "cvt", "head_dim": 64},
  )

  width: int | Sequence[int] = 128
  depth: Sequence[int] = (1, 1, 2)
  num_heads: int | Sequence[int] = 4
  mlp_dim: int | Sequence[int] = 256
  kernel: int = 3
  strides: int | Sequence[int] = 1

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes); arguments as for `ViT`.

    Raises:
      ConfigError: a class token, or a sequence of another length than there are stages.
    """
    stages = len(self.depth)
    heads = per_stage(self.num_heads, stages, "num_heads")
    mlp_dims = per_stage(self.mlp_dim, stages, "mlp_dim")
    pool = self.pool(name="pool")
    if pool.prefix:
      raise ConfigError(
        "model.pool='cls' puts a token in front of the grid, which CvT convolves between its"
        " stages; use model.pool='mean' or 'sequence'"
      )
    grid, token_mixer, layers = images, self.token_mixer, stage_layers(self.depth)
    for stage, embed in enumerate(self._embeddings(stages)):
      grid = self.norm(dtype=self.dtype, name=f"stage_{stage}_norm")(embed(grid))
      layout = TokenLayout(grid.shape[1:3])
      x = grid.reshape(len(grid), layout.length, -1)  # (B, N, C)
      if stage == 0:
        x, token_mixer = self.positioned(x, layout)
        x = Dropout(self.dropout)(x, train)
      x = self.run_blocks(
        x,
        layout,
        token_mixer,
        train,
        layers=layers[stage],
        depth=sum(self.depth),
        num_heads=heads[stage],
        mlp_dim=mlp_dims[stage],
        name=f"stage_{stage}_block",
      )
      grid = x.reshape(grid.shape)
    return self.logits(pool(x, layout))

  def _embeddings(self, stages: int) -> Iterator[nn.Module]:
    """The stem, then the convolution in front of each later stage."""
    widths = per_stage(self.width, stages, "width")
    strides = per_stage(self.strides, stages - 1, "strides")
    yield self.stem(width=widths[0], dtype=self.dtype, name="stem")
    for stage, (width, stride) in enumerate(zip(widths[1:], strides, strict=True), start=1):
      yield nn.Conv(
        width,
        (self.kernel, self.kernel),
        (stride, stride),
        padding=self.kernel // 2,
        dtype=self.dtype,
        name=f"stage_{stage}_embed",
      )
