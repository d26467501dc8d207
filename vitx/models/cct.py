"""The compact convolutional transformer, a ViT with other defaults."""

from typing import ClassVar

from vitx.models.trunk import Parts, with_defaults
from vitx.models.vit import ViT


class CCT(ViT):
  """CCT (Hassani et al. 2021): a convolutional tokenizer, sequence pooling, no class token.

  The block normalizes the residual stream itself before the MLP, as in the authors' code; the paper
  describes the usual block (`block="pre_norm"`).
  """

  PARTS: ClassVar[Parts] = with_defaults(
    ViT.PARTS,
    stem="cct",
    posemb={"name": "learned", "stddev": 0.2},
    pool="sequence",
    norm={"name": "layer", "epsilon": 1e-5},
    block="normalized_stream",
    token_mixer={"name": "softmax", "use_bias": False, "dropout": 0.1},
    initialization="truncated_normal",
  )
