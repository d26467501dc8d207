"""Renames the weights of other projects to vitx's names, and back.

A family is a naming scheme that several files share.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError
from vitx.interop import google_names, timm_names, transformers_names, vit_pytorch_names
from vitx.interop.naming import Arrays, NameRule, convert_in, convert_out


@dataclasses.dataclass(frozen=True)
class Family:
  """A naming scheme of another project, recognized by some of its names.

  Attributes:
    marks: The names of arrays that identify the scheme if all of them are present.
    rules: The rules that rename the arrays.
    posemb: The fields that `model.posemb` must have, if the networks' positions have no parameters
      from which they could be read; otherwise {}.
  """

  marks: tuple[str, ...]
  rules: list[NameRule]
  posemb: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_TIMM = ("patch_embed.proj.weight", "cls_token")
_ROPE = {"name": "rope", "kind": "centered", "base": 100.0}  # of all published DINOv3 networks
_TRANSFORMERS = ("embeddings.patch_embeddings.projection.weight", "embeddings.cls_token")
# A file belongs to the first family of which it has all marks.
FAMILIES = {
  "lv_vit": Family(("patch_embed.conv1.weight",), timm_names.LV_VIT),
  "distilled": Family((*_TIMM, "dist_token"), timm_names.DISTILLED),
  "dinov3": Family((*_TIMM, "storage_tokens"), timm_names.DINOV3, _ROPE),
  "timm_dinov3": Family((*_TIMM, "blocks.0.attn.q_bias"), timm_names.TIMM_DINOV3, _ROPE),
  "timm_dinov3_without_biases": Family(
    (*_TIMM, "blocks.0.gamma_1"), timm_names.TIMM_DINOV3_WITHOUT_BIASES, _ROPE
  ),
  "siglip": Family(("patch_embed.proj.weight", "attn_pool.latent"), timm_names.SIGLIP),
  "dinov2_registers": Family((*_TIMM, "register_tokens"), timm_names.DINOV2_REGISTERS),
  "registers": Family((*_TIMM, "reg_token"), timm_names.REGISTERS),
  "timm": Family(("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"), timm_names.VIT),
  "transformers_dinov3": Family(
    ("embeddings.patch_embeddings.weight", "embeddings.register_tokens"),
    transformers_names.DINOV3,
    _ROPE,
  ),
  "transformers_siglip": Family(
    ("embeddings.patch_embedding.weight", "head.probe"), transformers_names.SIGLIP
  ),
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
  "mlp_mixer": Family(
    ("stem.proj.weight", "blocks.0.mlp_tokens.fc1.weight"), timm_names.MLP_MIXER, {"name": "none"}
  ),
  "convmixer": Family(("stem.0.weight", "blocks.0.0.fn.0.weight"), timm_names.CONVMIXER),
  "vit_pytorch": Family(
    ("to_patch_embedding.1.weight", "transformer.layers.0.0.norm.weight"),
    vit_pytorch_names.VIT_PYTORCH,
  ),
  "augreg": Family(("embedding/kernel",), google_names.AUGREG),
  "big_vision": Family(("params/embedding/kernel",), google_names.BIG_VISION),
}
# Arrays that no network reads: counters of PyTorch's batch norm, the token that replaces a hidden
# patch during DINOv2's training, the layer that transformers adds after the class token, and
# DINOv3's periods of rotation, which follow from `posemb.base` (the file has them rounded).
_UNREAD = re.compile(
  r".*\.num_batches_tracked|(embeddings\.)?mask_token|pooler\.dense\..*|rope_embed\.periods"
)
# PyTorch adds these parts to names if a part of a network is compiled, sharded or recomputed.
_WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# DINOv2's training code with `block_chunks` adds a chunk's number; blocks are counted throughout.
_CHUNKS = re.compile(r"(?<=blocks\.)\d+\.(?=\d+\.(norm|attn|ls|mlp))")


def find_family(theirs: Arrays) -> str:
  """Returns the name of the first family in `FAMILIES` of which the arrays have all marks."""
  for name, family in FAMILIES.items():
    if all(mark in theirs for mark in family.marks):
      return name
  some = ", ".join(sorted(theirs)[:3])
  raise ConfigError(
    f"the names of its arrays ({some}, ...) are not known; docs/weights.md lists known projects."
  )


def strip(theirs: Arrays, order: Sequence[str]) -> tuple[Arrays, dict[str, str]]:
  """Removes the common prefix of a network's array names.

  A file may contain the network as a part of a larger one, under a prefix such as `module.`,
  `backbone.` or `vit.`. Arrays without the prefix, such as a head, are used if the family has names
  for all of them. Otherwise all of them are left out, since they may belong to parts that vitx does
  not know.

  Args:
    theirs: The arrays by their names in the file.
    order: Words of prefixes, by priority. If a file has two networks, the one whose prefix has the
      earlier word is used.

  Returns:
    The arrays, and notes on the removed prefixes and the arrays left out.
  """
  whole = {_WRAPPERS.sub("", name): x for name, x in theirs.items()}
  plain = {_CHUNKS.sub("", name): x for name, x in whole.items()}
  if len(plain) < len(theirs):
    raise ConfigError(
      "two of its arrays have one name without what PyTorch's wrappers ('_orig_mod.') or chunks of"
      " blocks ('blocks.0.') add; save the state_dict() of the network alone."
    )
  notes = {}
  if whole.keys() != theirs.keys():
    notes["_orig_mod."] = "a wrapper of PyTorch in names, or a similar one; removed"
  if plain.keys() != whole.keys():
    notes["blocks.0."] = "the number of a chunk of blocks in names, or a similar one; removed"
  prefix, family = _locate(plain, order)
  if not prefix:
    return plain, notes
  inside = {n.removeprefix(prefix): x for n, x in plain.items() if n.startswith(prefix)}
  notes[prefix] = f"in front of {len(inside)} names; removed"
  outside = {n: _cut(n, prefix) for n in plain if not n.startswith(prefix)}
  ours = {short: plain[name] for name, short in outside.items()}
  try:
    _, unused = convert_in(FAMILIES[family].rules, ours, 1)
  except ConfigError:  # A rule needs another array beside one of these.
    unused = list(ours)
  if outside and not unused and not ours.keys() & inside.keys():
    return inside | ours, notes
  return inside, notes | dict.fromkeys(outside, f"outside the network {prefix}*")


def _locate(theirs: Arrays, order: Sequence[str]) -> tuple[str, str]:
  """Returns the prefix of the names of a file's network, and its family; "" if none is known."""
  families: dict[str, str] = {}
  for name, family in FAMILIES.items():
    first = family.marks[0]
    for front in (x.removesuffix(first) for x in theirs if x.endswith(first)):
      whole = not front or front[-1] in "./"
      if whole and all(front + mark in theirs for mark in family.marks):
        families.setdefault(front, name)
  # Names in big_vision's files are AugReg's with a prefix.
  outer = [x for x in families if not any(x != y and x.startswith(y) for y in families)]
  rank = lambda x: min((order.index(w) for w in x.split(".") if w in order), default=99)  # noqa: E731
  outer = [x for x in outer if rank(x) == min(map(rank, outer))]
  if len(outer) > 1:
    raise ConfigError(
      f"it has several networks, {', '.join(f'{x}*' for x in outer)}; save one of them in a"
      " separate file."
    )
  return (outer[0], families[outer[0]]) if outer else ("", "")


def _cut(name: str, prefix: str) -> str:
  """Returns a name without the leading parts that it shares with `prefix`."""
  parts, front = (re.split(r"(?<=[./])", x) for x in (name, prefix))
  shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(parts, front, strict=False))
  return "".join(parts[len(list(shared)) :])


def to_ours(theirs: Arrays, num_heads: int) -> tuple[dict[str, np.ndarray], list[str]]:
  """Renames arrays to vitx's names, such as "params/block_0/mlp/up/kernel".

  Args:
    theirs: The arrays by their names in the file.
    num_heads: The number of heads H, which the shapes do not show.

  Returns:
    The renamed arrays, and the names that no rule covers.
  """
  ours, unused = convert_in(FAMILIES[find_family(theirs)].rules, theirs, num_heads)
  return ours, [name for name in unused if not _UNREAD.fullmatch(name)]


def to_theirs(ours: Arrays, family: str) -> dict[str, np.ndarray]:
  """Renames arrays from vitx's names to those of a family, the inverse of `to_ours`."""
  theirs, unused = convert_out(FAMILIES[family].rules, ours)
  if unused:
    raise ConfigError(
      f"out: networks of {family!r} have no place for {sorted(unused)[0]}; export a run without it."
    )
  return theirs
