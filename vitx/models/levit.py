"""LeViT of one stage, a ViT with other defaults."""

from typing import ClassVar

from vitx.models.trunk import Parts, with_defaults
from vitx.models.vit import ViT


class LeViT(ViT):
  """LeViT with one stage (Graham et al. 2021), without attention bias and positions.

  It follows ViX (Jeevan and Sethi 2022). The stem has only convolutions, the blocks have no
  normalization, and the pool is the mean of the tokens. Only LeViT's own attention normalizes: with
  any other `token_mixer` there is no normalization, as in ViX's variants LeViP, LeViL and LeViN. A
  fair baseline for these variants is `token_mixer="softmax"`; `norm="layer"` gives all of them the
  usual pre-norm blocks.
  """

  PARTS: ClassVar[Parts] = with_defaults(
    ViT.PARTS, stem="hybrid", posemb="none", pool="mean", norm="none", token_mixer="levit"
  )
