"""LeViT of one stage, a ViT with other defaults."""

from typing import ClassVar

from vitx.models.trunk import Parts, with_defaults
from vitx.models.vit import ViT


class LeViT(ViT):
  """LeViT of one stage (Graham et al. 2021), as in ViX: no attention bias, no positions.

  It has bare convolutions, blocks without normalization, and the mean of the tokens. Only its own
  attention has statistics: any other `token_mixer` leaves a network without normalization, like
  ViX's LeViP, LeViL and LeViN. Their fair baseline is `token_mixer="softmax"`; `norm="layer"` gives
  all of them the usual blocks.
  """

  PARTS: ClassVar[Parts] = with_defaults(
    ViT.PARTS, stem="hybrid", posemb="none", pool="mean", norm="none", token_mixer="levit"
  )
