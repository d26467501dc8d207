"""Finds the timm network that computes a vitx network's function, and writes it as Python code.

Parameters do not determine the function of a network: an activation or the rotation of queries
leaves no trace in them. So every field of a config's model must be an argument of timm's
constructor, have no effect on a trained network, or have its default value.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from vitx.config.errors import ConfigError

Fields = Mapping[str, Any]
ImageSize = int | tuple[int, int]  # The side of a square, or (height, width).
# Fields that affect a network's initialization, training or execution, but not its function.
FREE = (
  *("initialization", "pool.stddev", "posemb.stddev"),
  *("dropout", "stochastic_depth", "block.mixer_dropout", "token_mixer.dropout"),
  *("remat", "dtype", "token_mixer.implementation"),
  "lora",  # merged into the kernels
)
_SIZES = ("num_classes", "width", "depth", "num_heads", "mlp_dim")


@dataclasses.dataclass(frozen=True)
class ForeignNetwork:
  """A network of another project.

  Attributes:
    family: The naming scheme of its weights, a key of `foreign_names.FAMILIES`.
    code: Python code that builds the network as `model`, or "" if timm has no such network.
  """

  family: str
  code: str


@dataclasses.dataclass(frozen=True)
class _NetworkKind:
  """A kind of network that vitx shares with another project.

  Attributes:
    names: The values that the kind requires, by field, such as "softmax" for "token_mixer.name".
    arguments: The fields that are arguments of the other project's constructor.
    write: The function `(fields, size, channels) -> ForeignNetwork`.
  """

  names: Mapping[str, Any]
  arguments: tuple[str, ...]
  write: Callable[[Fields, ImageSize, int], ForeignNetwork]


def find_network(
  fields: Fields, defaults: Fields, size: ImageSize, channels: int
) -> ForeignNetwork:
  """Returns the network of another project that computes the function of a config's model.

  Args:
    fields: Every field of `config.model` by its dotted path, such as "block.activation".
    defaults: The fields of a config with the named choices of `fields`, such as the token mixer,
      and with the default value of every other field.
    size: The side of the images in pixels, or (height, width).
    channels: The number of channels of the images.

  Raises:
    ConfigError: There is no such network; the message names the field.
  """

  def distance(kind: _NetworkKind) -> tuple[bool, int, int]:
    differing = [field for field, value in kind.names.items() if fields.get(field) != value]
    return "name" in differing, sum(x.endswith(".name") for x in differing), len(differing)

  kind = min(KINDS, key=distance)
  _check_kind(kind, fields, defaults)
  return kind.write(fields, size, channels)


def _check_kind(kind: _NetworkKind, fields: Fields, defaults: Fields) -> None:
  """Raises ConfigError if a field of a model has another value than all networks of a kind."""
  free = tuple(f"{field}." for field in (*FREE, *kind.arguments))
  fixed = {field: defaults.get(field) for field in fields if not f"{field}.".startswith(free)}
  if (fields.get("token_mixer.head_dim") or 0) * fields.get("num_heads", 0) == fields.get("width"):
    fixed.pop("token_mixer.head_dim", None)
  for field, value in {**kind.names, **fixed, **kind.names}.items():
    if fields.get(field) != value:
      raise ConfigError(
        f"model.{field.removesuffix('.name')}={fields.get(field)!r} has no equivalent in timm,"
        f" whose network has {value!r}."
      )


def _call(module: str, name: str, arguments: Mapping[str, Any]) -> str:
  """Returns Python code that imports `name` and calls it; arguments that are None are left out."""
  keywords = [f"  {key}={value}," for key, value in arguments.items() if value is not None]
  partial = (
    "from functools import partial\n\n" if any("partial" in line for line in keywords) else ""
  )
  lines = [f"from timm.models.{module} import {name}", "", f"model = {name}(", *keywords, ")"]
  return partial + "\n".join(lines) + "\n"


def _epsilon(fields: Fields) -> str | None:
  """Returns code for timm's normalization, or `None` if epsilon is timm's default, 1e-6."""
  epsilon = fields["norm.epsilon"]
  return None if epsilon == 1e-6 else f"partial(torch.nn.LayerNorm, eps={epsilon!r})"


def _vit_arguments(fields: Fields, size: ImageSize, channels: int) -> dict[str, Any]:
  activation = fields["block.activation"]  # Both libraries use these names.
  return {
    "img_size": size,
    "patch_size": fields["stem.patch"],
    "in_chans": channels,
    "num_classes": fields["num_classes"],
    "embed_dim": fields["width"],
    "depth": fields["depth"],
    "num_heads": fields["num_heads"],
    "mlp_ratio": _ratio(fields["mlp_dim"], fields["width"]),
    "qkv_bias": None if fields["token_mixer.use_bias"] else False,
    "norm_layer": _epsilon(fields),
    "act_layer": None if activation == "gelu" else repr(activation),
    "init_values": fields["block.layer_scale"],
    "reg_tokens": fields["extra_tokens"] or None,
    "no_embed_class": None if fields.get("posemb.prefix", True) else True,
  }


def _ratio(hidden: int, width: int) -> str:
  """Returns Python code of an MLP ratio that gives exactly `hidden` when timm rounds down."""
  exact = hidden / width
  return repr(exact) if int(width * exact) == hidden else f"{hidden} / {width} + 1e-9"


def _write_vit(fields: Fields, size: ImageSize, channels: int) -> ForeignNetwork:
  arguments = _vit_arguments(fields, size, channels)
  family = "registers" if fields["extra_tokens"] else "timm"
  return ForeignNetwork(family, _call("vision_transformer", "VisionTransformer", arguments))


def _write_map(fields: Fields, size: ImageSize, channels: int) -> ForeignNetwork:
  width = fields["width"]
  of_pool = {
    "num_heads": fields["pool.num_heads"] or max(1, width // 64),
    "mlp_dim": fields["pool.mlp_dim"] or 4 * width,
    "block.activation": fields["pool.activation"],
    "norm.epsilon": 1e-6,
  }
  for name, value in of_pool.items():
    if fields[name] != value:
      raise ConfigError(
        f"model.{name}={fields[name]!r} has no equivalent in timm: there the pool uses this value"
        f" too, but model.pool has {value!r}."
      )
  arguments = _vit_arguments(fields, size, channels)
  arguments |= {"class_token": False, "global_pool": repr("map")}
  code = _call("vision_transformer", "VisionTransformer", arguments)
  return ForeignNetwork("siglip", code)


def _write_dinov3(fields: Fields, size: ImageSize, channels: int) -> ForeignNetwork:
  arguments = _vit_arguments(fields, size, channels)
  arguments |= {
    "norm_layer": f"partial(torch.nn.LayerNorm, eps={fields['norm.epsilon']!r})",
    "num_reg_tokens": arguments.pop("reg_tokens"),
    "use_abs_pos_emb": False,
    "use_rot_pos_emb": True,
    "rope_type": repr("dinov3"),
    "rope_temperature": fields["posemb.base"],
    "rope_rotate_half": True,
    "global_pool": repr("token"),
    "use_fc_norm": False,
  }
  return ForeignNetwork("timm_dinov3", _call("eva", "Eva", arguments))


def _write_distilled(fields: Fields, size: ImageSize, channels: int) -> ForeignNetwork:
  arguments = _vit_arguments(fields, size, channels)
  return ForeignNetwork("distilled", _call("deit", "VisionTransformerDistilled", arguments))


def _write_mixer(fields: Fields, size: ImageSize, channels: int) -> ForeignNetwork:
  width, patch = fields["width"], fields["stem.patch"]
  height, across = (size, size) if isinstance(size, int) else size
  tokens = fields["token_mixer.hidden"] or (height // patch) * (across // patch)
  arguments = {
    "img_size": size,
    "patch_size": patch,
    "in_chans": channels,
    "num_classes": fields["num_classes"],
    "num_blocks": fields["depth"],
    "embed_dim": width,
    "mlp_ratio": f"({_ratio(tokens, width)}, {_ratio(fields['mlp_dim'], width)})",
    "norm_layer": _epsilon(fields),
  }
  return ForeignNetwork("mlp_mixer", _call("mlp_mixer", "MlpMixer", arguments))


def _write_convmixer(fields: Fields, size: ImageSize, channels: int) -> ForeignNetwork:
  arguments = {
    "dim": fields["width"],
    "depth": fields["depth"],
    "kernel_size": fields["kernel"],
    "patch_size": fields["patch"],
    "in_chans": channels,
    "num_classes": fields["num_classes"],
  }
  return ForeignNetwork("convmixer", _call("convmixer", "ConvMixer", arguments))


_PLAIN = {
  "stem.name": "linear",
  "posemb.name": "learned",
  "norm.name": "layer",
  "block.name": "pre_norm",
  "token_mixer.name": "softmax",
  "token_reduction.name": "none",
}
_MIXER = {"token_mixer.name": "mlp_mixing", "posemb.name": "none", "pool.name": "mean"}
_DINOV3 = {
  "posemb.name": "rope",
  "posemb.kind": "centered",
  "pool.name": "cls",
  "token_mixer.key_bias": False,
}
_OF_DINOV3 = ("block.activation", "token_mixer.use_bias")
_VIT = (
  *(*_SIZES, "stem.patch", "norm.epsilon"),
  *("block.activation", "token_mixer.use_bias", "block.layer_scale"),
)
KINDS = (
  _NetworkKind(
    {"name": "vit", **_PLAIN, "pool.name": "cls"},
    (*_VIT, "extra_tokens", "posemb.prefix"),
    _write_vit,
  ),
  _NetworkKind(
    {"name": "vit", **_PLAIN, "pool.name": "map"},
    (*_VIT, "posemb.prefix", "pool.num_heads", "pool.mlp_dim", "pool.activation"),
    _write_map,
  ),
  _NetworkKind(
    {"name": "vit", **_PLAIN, **_DINOV3},
    # A file of timm without biases is read with biases of zero.
    (*(x for x in _VIT if x not in _OF_DINOV3), "extra_tokens", "posemb.base"),
    _write_dinov3,
  ),
  _NetworkKind(
    {"name": "vit", **_PLAIN, **_MIXER},
    (*_SIZES, "stem.patch", "norm.epsilon", "token_mixer.hidden"),
    _write_mixer,
  ),
  _NetworkKind(
    {"name": "distilled_vit", **_PLAIN, "pool.name": "class_and_distillation"},
    _VIT,
    _write_distilled,
  ),
  _NetworkKind(
    {"name": "lv_vit", **_PLAIN, "stem.name": "normalized", "pool.name": "cls"},
    (*_SIZES, "stem.channels", "norm.epsilon", "token_mixer.use_bias", "block.branch_divisor"),
    lambda fields, size, channels: ForeignNetwork("lv_vit", ""),
  ),
  _NetworkKind(
    {"name": "convmixer"}, ("num_classes", "width", "depth", "patch", "kernel"), _write_convmixer
  ),
)
