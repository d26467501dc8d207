"""Whole networks by name."""

import importlib
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.checks import check_fields
from vitx.errors import ConfigError, listing
from vitx.models.cct import CCT
from vitx.models.convmixer import ConvMixer
from vitx.models.cvt import CvT
from vitx.models.initialize import initialize as initialize
from vitx.models.levit import LeViT
from vitx.models.pit import PiT
from vitx.models.resnet import ResNet
from vitx.models.swin import Swin
from vitx.models.vit import ViT
from vitx.registry import build, check_options, lookup, options

MODELS = {
  "cct": CCT,
  "convmixer": ConvMixer,
  "cvt": CvT,
  "levit": LeViT,
  "pit": PiT,
  "resnet": ResNet,
  "swin": Swin,
  "vit": ViT,
}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}


def list_models() -> list[str]:
  """The names that `create_model` knows."""
  return sorted(MODELS)


def create_model(name: str, *, num_classes: int, **fields: Any) -> nn.Module:
  """Makes a network.

  Args:
    name: one of `list_models()`, or `module:Class` of your own.
    num_classes: outputs of the head.
    **fields: the model's fields, named choices as a name or a dict with a `name`, for example
      `create_model("vit", num_classes=10, depth=4, token_mixer=dict(name="softmax"))`.

  Returns:
    A Flax module: `variables = model.init(key, images)`, `logits = model.apply(variables, images)`,
    images (B, height, width, channels).

  Raises:
    ConfigError: unknown model, field, part or option; lists the valid ones.
  """
  model = lookup(MODELS, name, "model.name")
  check_options(model, fields, "model", hidden=("num_classes", "name"))
  check_fields(model, fields, "model")
  if "dtype" in fields:
    fields["dtype"] = _dtype(fields["dtype"])
  for field, (table, default, hidden) in getattr(model, "PARTS", {}).items():
    fields[field] = build(table, fields.get(field, default), f"model.{field}", hidden)
  return model(num_classes=num_classes, **fields)


def model_from_config(model: Mapping[str, Any]) -> nn.Module:
  """`create_model` for a config's `model` entry, `num_classes` included."""
  if model.get("num_classes") is None:
    raise ConfigError("model.num_classes is not set: resolve the config against a source first")
  return create_model(**model)


def resolve_model(model: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
  """Sets `token_mixer.seed` where the mixer has that field and it is not set (shim)."""
  model = dict(model)
  parts = getattr(lookup(MODELS, model["name"], "model.name"), "PARTS", {})
  if "token_mixer" not in parts:
    return model
  table, default, _ = parts["token_mixer"]
  mixer = model.get("token_mixer", default)
  mixer = {"name": mixer} if isinstance(mixer, str) else dict(mixer)
  if "seed" in options(lookup(table, mixer["name"], "model.token_mixer.name")):
    model["token_mixer"] = {"seed": seed, **mixer}
  return model


def token_layout(model: nn.Module, shape: tuple[int, ...]) -> Any:
  """The layout of the tokens that positions are added to; None if there is none (shim)."""
  found = []

  def look(call, arguments, keywords, context):
    if context.module.name == "posemb" and context.method_name == "__call__":
      found.append(arguments[1])
    return call(*arguments, **keywords)

  with nn.intercept_methods(look):
    jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32))
  return found[0] if found else None


def _dtype(dtype: Any) -> Any:
  if not isinstance(dtype, str):
    return dtype
  if dtype not in DTYPES:
    raise ConfigError(f"model.dtype={dtype!r}; valid: {listing(DTYPES)}")
  return DTYPES[dtype]


def __getattr__(name: str) -> Any:
  # Imported at its first use: `analysis` stands above this room.
  if name == "count":
    return importlib.import_module("vitx.analysis.counting").count
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
