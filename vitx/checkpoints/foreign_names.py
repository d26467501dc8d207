"""The sources whose names are known: which one named a file's arrays, theirs to ours, and back."""

import dataclasses
import re

import numpy as np

from vitx.checkpoints import google_names, timm_names, vit_pytorch_names
from vitx.checkpoints.naming import Arrays, Rule, convert_in, convert_out
from vitx.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Family:
  """Names that one source gives.

  Attributes:
    marks: names of theirs by which the family is known.
    rules: of the arrays.
  """

  marks: tuple[str, ...]
  rules: list[Rule]


_TIMM = ("patch_embed.proj.weight", "cls_token")
# The first whose marks a file all has is its source.
FAMILIES = {
  "lv_vit": Family(("patch_embed.conv1.weight",), timm_names.LV_VIT),
  "distilled": Family((*_TIMM, "dist_token"), timm_names.DISTILLED),
  "dinov2_registers": Family((*_TIMM, "register_tokens"), timm_names.DINOV2_REGISTERS),
  "registers": Family((*_TIMM, "reg_token"), timm_names.REGISTERS),
  "timm": Family(_TIMM, timm_names.VIT),
  "mlp_mixer": Family(("stem.proj.weight", "blocks.0.mlp_tokens.fc1.weight"), timm_names.MLP_MIXER),
  "convmixer": Family(("stem.0.weight", "blocks.0.0.fn.0.weight"), timm_names.CONVMIXER),
  "vit_pytorch": Family(
    ("to_patch_embedding.1.weight", "transformer.layers.0.0.norm.weight"),
    vit_pytorch_names.VIT_PYTORCH,
  ),
  "augreg": Family(("embedding/kernel",), google_names.AUGREG),
  "big_vision": Family(("params/embedding/kernel",), google_names.BIG_VISION),
}
# What no network reads: counters of PyTorch's batch norm, and the token that stands for a hidden
# patch while DINOv2 is trained.
_UNREAD = re.compile(r".*\.num_batches_tracked|mask_token")


def find_family(theirs: Arrays) -> str:
  """Returns which of `FAMILIES` named these arrays.

  Raises:
    ConfigError: none of them did.
  """
  for name, family in FAMILIES.items():
    if all(mark in theirs for mark in family.marks):
      return name
  some = ", ".join(sorted(theirs)[:3])
  raise ConfigError(
    f"its arrays ({some}, ...) are named by none of the sources whose names are known: vision"
    " transformers of timm, DeiT (plain or distilled), DINO and DINOv2, LV-ViT, vit-pytorch's ViT"
    " (BBViT, VisionXformer), timm's MLP-Mixer and ConvMixer, and Google's AugReg and big_vision"
  )


def to_ours(theirs: Arrays, num_heads: int) -> tuple[dict[str, np.ndarray], list[str]]:
  """Returns the arrays under our names, such as "params/block_0/mlp/up/kernel", and what is left.

  Args:
    theirs: arrays by the name that their source gave them.
    num_heads: H, which their shapes do not tell.

  Raises:
    ConfigError: names of no known source, or a shape that does not split into H heads.
  """
  ours, left = convert_in(FAMILIES[find_family(theirs)].rules, theirs, num_heads)
  return ours, [name for name in left if not _UNREAD.fullmatch(name)]


def to_theirs(ours: Arrays, family: str) -> dict[str, np.ndarray]:
  """Returns arrays of ours under the names of a family, the inverse of `to_ours`.

  Raises:
    ConfigError: an array of ours has no place there.
  """
  theirs, left = convert_out(FAMILIES[family].rules, ours)
  if left:
    raise ConfigError(f"{sorted(left)[0]} has no place in a state dict of {family!r}")
  return theirs
