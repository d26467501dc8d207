"""Where published weights stand in our trees, and back: a table of rules for each source.

A rule names arrays of theirs, those of ours that they become (several, where one of theirs holds
query, key and value), and the map between them in both directions. `{}` is the number of a block.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from vitx.errors import ConfigError

Arrays = Mapping[str, np.ndarray]
Into = Callable[[np.ndarray, int], tuple[np.ndarray, ...]]
Back = Callable[[Sequence[np.ndarray]], np.ndarray]
Several = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Rule:
  """Arrays of theirs and those of ours that hold the same.

  Attributes:
    theirs: their names, `{}` for the number of a block.
    ours: names of ours.
    into: `(theirs, H) -> ours`.
    back: `ours -> theirs`.
  """

  theirs: tuple[str, ...]
  ours: tuple[str, ...]
  into: Callable[[Several, int], Several]
  back: Callable[[Several], Several]


def _rule(theirs: str, ours: tuple[str, ...], into: Into, back: Back) -> Rule:
  """One array of theirs."""
  return Rule((theirs,), ours, lambda xs, heads: into(xs[0], heads), lambda xs: (back(xs),))


def _same(theirs: str, ours: str) -> Rule:
  return _rule(theirs, (ours,), lambda x, heads: (x,), lambda xs: xs[0])


def _turned(theirs: str, ours: str) -> Rule:
  """A linear map (out, in)."""
  return _rule(theirs, (ours,), lambda x, heads: (x.T,), lambda xs: xs[0].T)


def _convolution(theirs: str, ours: str) -> Rule:
  """A convolution (out, in, height, width)."""
  into: Into = lambda x, heads: (x.transpose(2, 3, 1, 0),)  # noqa: E731
  return _rule(theirs, (ours,), into, lambda xs: xs[0].transpose(3, 2, 0, 1))


def _from_heads(theirs: str, ours: str) -> Rule:
  """A linear map (C, H D) that reads the heads one after another."""
  into: Into = lambda x, heads: (x.T.reshape(heads, -1, len(x)),)  # noqa: E731
  return _rule(theirs, (ours,), into, lambda xs: xs[0].reshape(-1, xs[0].shape[-1]).T)


def _stacked_weight(theirs: str, ours: tuple[str, ...]) -> Rule:
  """Linear maps (H D, C), one above the other; each head's rows are together."""

  def into(x: np.ndarray, heads: int) -> tuple[np.ndarray, ...]:
    return tuple(w.T.reshape(x.shape[1], heads, -1) for w in np.split(x, len(ours)))

  return _rule(theirs, ours, into, lambda xs: np.concatenate([w.reshape(len(w), -1).T for w in xs]))


def _stacked_bias(theirs: str, ours: tuple[str, ...]) -> Rule:
  def into(x: np.ndarray, heads: int) -> tuple[np.ndarray, ...]:
    return tuple(b.reshape(heads, -1) for b in np.split(x, len(ours)))

  return _rule(theirs, ours, into, lambda xs: np.concatenate([b.reshape(-1) for b in xs]))


def _linear(theirs: str, ours: str) -> list[Rule]:
  return [_turned(f"{theirs}.weight", f"{ours}/kernel"), _same(f"{theirs}.bias", f"{ours}/bias")]


def _norm(theirs: str, ours: str) -> list[Rule]:
  return [_same(f"{theirs}.weight", f"{ours}/scale"), _same(f"{theirs}.bias", f"{ours}/bias")]


_QKV = ("query", "key", "value")
_MIXER = "params/block_{}/token_mixer"

_TRUNK = [
  _same("pos_embed", "params/posemb/table"),
  *_norm("blocks.{}.norm1", "params/block_{}/mixer_norm"),
  _stacked_weight("blocks.{}.attn.qkv.weight", tuple(f"{_MIXER}/{x}/kernel" for x in _QKV)),
  _stacked_bias("blocks.{}.attn.qkv.bias", tuple(f"{_MIXER}/{x}/bias" for x in _QKV)),
  _from_heads("blocks.{}.attn.proj.weight", f"{_MIXER}/out/kernel"),
  _same("blocks.{}.attn.proj.bias", f"{_MIXER}/out/bias"),
  *_norm("blocks.{}.norm2", "params/block_{}/mlp_norm"),
  *_linear("blocks.{}.mlp.fc1", "params/block_{}/mlp/up"),
  *_linear("blocks.{}.mlp.fc2", "params/block_{}/mlp/down"),
  *_norm("norm", "params/norm"),
  *_linear("head", "params/head"),
]
_CLASS = _same("cls_token", "params/cls")
_PATCHES = [
  _convolution("patch_embed.proj.weight", "params/stem/embed/kernel"),
  _same("patch_embed.proj.bias", "params/stem/embed/bias"),
]


def _both_tokens() -> Rule:
  """The class token and the distillation token, which ours keeps in one array."""
  return Rule(
    ("cls_token", "dist_token"),
    ("params/cls",),
    lambda xs, heads: (np.concatenate(xs, axis=1),),
    lambda xs: (xs[0][:, :1], xs[0][:, 1:]),
  )


def _lv_stem(number: int) -> list[Rule]:
  theirs, ours = f"patch_embed.bn{number + 1}", f"stem/norm_{number}"
  return [
    _convolution(f"patch_embed.conv{number + 1}.weight", f"params/stem/conv_{number}/kernel"),
    *_norm(theirs, f"params/{ours}"),
    _same(f"{theirs}.running_mean", f"batch_stats/{ours}/mean"),
    _same(f"{theirs}.running_var", f"batch_stats/{ours}/var"),
  ]


TIMM = [_CLASS, *_PATCHES, *_TRUNK]
DISTILLED = [_both_tokens(), *_PATCHES, *_TRUNK, *_linear("head_dist", "params/head_distillation")]
LV_VIT = [
  _CLASS,
  *(rule for number in range(3) for rule in _lv_stem(number)),
  _convolution("patch_embed.proj.weight", "params/stem/patches/embed/kernel"),
  _same("patch_embed.proj.bias", "params/stem/patches/embed/bias"),
  *_TRUNK,
  *_linear("aux_head", "params/head_patches"),
]


def _flax(block: str, norms: tuple[str, str], attention: str, mlp: str) -> list[Rule]:
  """A block of Google's code, whose arrays are laid out as ours."""
  parts = {
    **dict(zip(norms, ("mixer_norm", "mlp_norm"), strict=True)),
    **{f"{attention}/{part}": f"token_mixer/{part}" for part in (*_QKV, "out")},
    **{f"{mlp}/Dense_{i}": f"mlp/{part}" for i, part in enumerate(("up", "down"))},
  }
  return [
    _same(f"{block}/{theirs}/{leaf}", f"params/block_{{}}/{ours}/{leaf}")
    for theirs, ours in parts.items()
    for leaf in (("scale", "bias") if theirs in norms else ("kernel", "bias"))
  ]


def _google(prefix: str, positions: str, block: list[Rule]) -> list[Rule]:
  return [
    _same(f"{prefix}cls", "params/cls"),
    _same(f"{prefix}{positions}", "params/posemb/table"),
    *(_same(f"{prefix}embedding/{x}", f"params/stem/embed/{x}") for x in ("kernel", "bias")),
    *block,
    *(
      _same(f"{prefix}Transformer/encoder_norm/{x}", f"params/norm/{x}") for x in ("scale", "bias")
    ),
    *(_same(f"{prefix}head/{x}", f"params/head/{x}") for x in ("kernel", "bias")),
  ]


AUGREG = _google(
  "",
  "Transformer/posembed_input/pos_embedding",
  _flax(
    "Transformer/encoderblock_{}",
    ("LayerNorm_0", "LayerNorm_2"),
    "MultiHeadDotProductAttention_1",
    "MlpBlock_3",
  ),
)
BIG_VISION = _google(
  "params/",
  "pos_embedding",
  _flax(
    "params/Transformer/encoderblock_{}",
    ("LayerNorm_0", "LayerNorm_1"),
    "MultiHeadDotProductAttention_0",
    "MlpBlock_0",
  ),
)
FAMILIES = {
  "timm": TIMM,
  "distilled": DISTILLED,
  "lv_vit": LV_VIT,
  "augreg": AUGREG,
  "big_vision": BIG_VISION,
}
_COUNTERS = re.compile(r".*\.num_batches_tracked")  # of PyTorch's batch norm; nothing reads them


def find_family(theirs: Arrays) -> str:
  """Returns which of `FAMILIES` named these arrays.

  Raises:
    ConfigError: none of them did.
  """
  if "patch_embed.conv1.weight" in theirs:
    return "lv_vit"
  if "patch_embed.proj.weight" in theirs and "cls_token" in theirs:
    return "distilled" if "dist_token" in theirs else "timm"
  for prefix, family in (("", "augreg"), ("params/", "big_vision")):
    if f"{prefix}embedding/kernel" in theirs:
      return family
  some = ", ".join(sorted(theirs)[:3])
  raise ConfigError(
    f"its arrays ({some}, ...) are named by none of the sources whose names are known:"
    " vision transformers of timm and DeiT, plain or distilled, LV-ViT, and Google's AugReg and"
    " big_vision"
  )


def to_ours(theirs: Arrays, num_heads: int) -> tuple[dict[str, np.ndarray], list[str]]:
  """Returns the arrays under our names, such as "params/block_0/mlp/up/kernel", and what is left.

  Args:
    theirs: arrays by the name that their source gave them.
    num_heads: H, which their shapes do not tell.

  Raises:
    ConfigError: names of no known source, or a shape that does not split into H heads.
  """
  rules, left = FAMILIES[find_family(theirs)], dict(theirs)
  ours: dict[str, np.ndarray] = {}
  for rule in rules:
    for first, number, arrays in _take(rule.theirs, left):
      try:
        parts = rule.into(arrays, num_heads)
      except ValueError as error:
        raise ConfigError(f"{first} does not split into num_heads={num_heads}: {error}") from error
      ours |= _name(rule.ours, number, parts)
  return ours, [name for name in left if not _COUNTERS.fullmatch(name)]


def to_theirs(ours: Arrays, family: str) -> dict[str, np.ndarray]:
  """Returns arrays of ours under the names of a family, the inverse of `to_ours`.

  Raises:
    ConfigError: an array of ours has no place there.
  """
  left = dict(ours)
  theirs: dict[str, np.ndarray] = {}
  for rule in FAMILIES[family]:
    for _, number, arrays in _take(rule.ours, left):
      theirs |= _name(rule.theirs, number, rule.back(arrays))
  if left:
    raise ConfigError(f"{sorted(left)[0]} has no place in a state dict of {family!r}")
  return {name: np.ascontiguousarray(x) for name, x in theirs.items()}


def _take(
  templates: tuple[str, ...], left: dict[str, np.ndarray]
) -> Iterator[tuple[str, str, Several]]:
  """Takes arrays that belong together out of `left`: the first's name, the number, the arrays."""
  for first, number in _matching(templates[0], left):
    names = [template.format(number) for template in templates]
    missing = [name for name in names if name not in left]
    if missing:
      raise ConfigError(f"{first} has no {missing[0]} beside it, and one goes with the other")
    yield first, number, [left.pop(name) for name in names]


def _name(templates: tuple[str, ...], number: str, arrays: Several) -> dict[str, np.ndarray]:
  return {template.format(number): x for template, x in zip(templates, arrays, strict=True)}


def _matching(template: str, names: Arrays) -> list[tuple[str, str]]:
  """Returns the names that a template stands for, each with its number."""
  pattern = re.compile(re.escape(template).replace(r"\{\}", r"(\d+)"))
  found = [(name, pattern.fullmatch(name)) for name in names]
  return [(name, match[1] if match.groups() else "") for name, match in found if match]
