"""The sources whose names are known: which one named a file's arrays, theirs to ours, and back."""

import dataclasses
import itertools
import re
from collections.abc import Sequence

import numpy as np

from vitx.config.errors import ConfigError
from vitx.interop import google_names, timm_names, transformers_names, vit_pytorch_names
from vitx.interop.naming import Arrays, NameRule, convert_in, convert_out


@dataclasses.dataclass(frozen=True)
class Family:
  """Names that one source gives.

  Attributes:
    marks: names of theirs by which the family is known.
    rules: of the arrays.
  """

  marks: tuple[str, ...]
  rules: list[NameRule]


_TIMM = ("patch_embed.proj.weight", "cls_token")
_TRANSFORMERS = ("embeddings.patch_embeddings.projection.weight", "embeddings.cls_token")
# The first whose marks a file all has is its source.
FAMILIES = {
  "lv_vit": Family(("patch_embed.conv1.weight",), timm_names.LV_VIT),
  "distilled": Family((*_TIMM, "dist_token"), timm_names.DISTILLED),
  "dinov2_registers": Family((*_TIMM, "register_tokens"), timm_names.DINOV2_REGISTERS),
  "registers": Family((*_TIMM, "reg_token"), timm_names.REGISTERS),
  "timm": Family(("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"), timm_names.VIT),
  "transformers_distilled": Family(
    (*_TRANSFORMERS, "embeddings.distillation_token"), transformers_names.DISTILLED
  ),
  "transformers_dinov2_registers": Family(
    (*_TRANSFORMERS, "embeddings.register_tokens"), transformers_names.DINOV2_REGISTERS
  ),
  "transformers_dinov2": Family(
    (*_TRANSFORMERS, "encoder.layer.0.norm1.weight"), transformers_names.DINOV2
  ),
  "transformers": Family(_TRANSFORMERS, transformers_names.VIT),
  "mlp_mixer": Family(("stem.proj.weight", "blocks.0.mlp_tokens.fc1.weight"), timm_names.MLP_MIXER),
  "convmixer": Family(("stem.0.weight", "blocks.0.0.fn.0.weight"), timm_names.CONVMIXER),
  "vit_pytorch": Family(
    ("to_patch_embedding.1.weight", "transformer.layers.0.0.norm.weight"),
    vit_pytorch_names.VIT_PYTORCH,
  ),
  "augreg": Family(("embedding/kernel",), google_names.AUGREG),
  "big_vision": Family(("params/embedding/kernel",), google_names.BIG_VISION),
}
# What no network reads: counters of PyTorch's batch norm, the token that stands for a hidden patch
# while DINOv2 is trained, and the layer behind the class token that transformers adds.
_UNREAD = re.compile(r".*\.num_batches_tracked|(embeddings\.)?mask_token|pooler\.dense\..*")
# What PyTorch puts into names where a part of a network is compiled, sharded or recomputed.
_WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


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
    " transformers of timm, DeiT (plain or distilled), DINO and DINOv2, LV-ViT, the library"
    " transformers (ViT, DeiT, DINOv2), vit-pytorch's ViT (BBViT, VisionXformer), timm's MLP-Mixer"
    " and ConvMixer, and Google's AugReg and big_vision"
  )


def strip(theirs: Arrays, order: Sequence[str]) -> tuple[Arrays, dict[str, str]]:
  """Returns arrays without what stands in front of every name of a network, and what that was.

  A file may hold the network as a part of another: `module.`, `backbone.`, `vit.`. Parts beside it
  that its source knows too, such as a head, come along; if there are others, all are left out,
  since what stands between is not known.

  Args:
    theirs: arrays by the name that their source gave them.
    order: of two networks in a file, that under the earlier of these words is taken.

  Returns:
    The arrays, and what was taken off or left out, with the reason.

  Raises:
    ConfigError: there are several networks, and none comes first; or one name twice.
  """
  plain = {_WRAPPERS.sub("", name): x for name, x in theirs.items()}
  if len(plain) < len(theirs):
    raise ConfigError("it names an array twice, but for the wrappers of PyTorch in the names")
  notes = {}
  if plain.keys() != theirs.keys():
    notes["_orig_mod."] = "a wrapper of PyTorch in names, or one like it; taken off"
  prefix, family = _locate(plain, order)
  if not prefix:
    return plain, notes
  inside = {n.removeprefix(prefix): x for n, x in plain.items() if n.startswith(prefix)}
  notes[prefix] = f"in front of {len(inside)} names; taken off"
  outside = {n: _cut(n, prefix) for n in plain if not n.startswith(prefix)}
  ours = {short: plain[name] for name, short in outside.items()}
  _, left = convert_in(FAMILIES[family].rules, ours, 1)
  if outside and not left and not ours.keys() & inside.keys():
    return inside | ours, notes
  return inside, notes | dict.fromkeys(outside, f"beside the network {prefix}*")


def _locate(theirs: Arrays, order: Sequence[str]) -> tuple[str, str]:
  """Returns the prefix of a network's names and its family; both are "" if no family is known."""
  found: dict[str, str] = {}
  for name, family in FAMILIES.items():
    first = family.marks[0]
    fronts = [each.removesuffix(first) for each in theirs if each.endswith(first)]
    for front in fronts:
      whole = not front or front[-1] in "./"
      if whole and all(front + mark in theirs for mark in family.marks):
        found.setdefault(front, name)
  # big_vision's names are AugReg's, and more in front.
  outer = [x for x in found if not any(x != y and x.startswith(y) for y in found)]
  if len(outer) > 1:
    ranks = {
      x: min((i for i, w in enumerate(order) if w in x.split(".")), default=99) for x in outer
    }
    best = min(ranks.values())
    outer = [x for x in outer if ranks[x] == best]
    if len(outer) > 1:
      raise ConfigError(
        f"it holds several networks, {', '.join(f'{x}*' for x in outer)}; save the one that you"
        " mean in a file of its own"
      )
  return (outer[0], found[outer[0]]) if outer else ("", "")


def _cut(name: str, prefix: str) -> str:
  """Returns a name without the parts that it begins with as `prefix` does."""
  parts, front = (re.split(r"(?<=[./])", each) for each in (name, prefix))
  alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(parts, front, strict=False))
  return "".join(parts[len(list(alike)) :])


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
