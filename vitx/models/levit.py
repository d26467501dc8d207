"""LeViT of one stage, a ViT with other defaults."""

from typing import ClassVar

from vitx.models.trunk import Parts, with_defaults
from vitx.models.vit import ViT


class LeViT(ViT):
  """LeViT of one stage (Graham et al. 2021), as in ViX: no attention bias, no positions.

  The stem has only convolutions, the blocks have no normalization, and the pool is the mean of the
  tokens. Only LeViT's own attention normalizes: with any other `token_mixer` there is no
  normalization, as in ViX's LeViP, LeViL and LeViN. Their fair baseline is `token_mixer="softmax"`;
  with `norm="layer"` all of them have the usual blocks.
  """

  PARTS: ClassVar[Parts] = with_defaults(
    ViT.PARTS, stem="hybrid", posemb="none", pool="mean", norm="none", token_mixer="levit"
  )
