"""LeViT of one stage, a sentence of its own defaults."""

from typing import ClassVar

from vitx.models.trunk import Parts, with_defaults
from vitx.models.vit import ViT


class LeViT(ViT):
  """LeViT of one stage (Graham et al. 2021), as ViX has it: no attention bias, no positions.

  Bare convolutions, blocks without normalization, the mean of the tokens. The only statistics are
  in its own attention: any other `token_mixer` leaves a network without any normalization, as
  ViX's LeViP, LeViL and LeViN are. `token_mixer="softmax"` is what those compare with fairly;
  `norm="layer"` gives all of them the usual blocks.
  """

  PARTS: ClassVar[Parts] = with_defaults(
    ViT.PARTS, stem="hybrid", posemb="none", pool="mean", norm="none", token_mixer="levit"
  )
