"""Whole networks by name."""

import importlib
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from vitx.checks import check_fields
from vitx.errors import ConfigError, listing
from vitx.models.cct import CCT
from vitx.models.convmixer import ConvMixer
from vitx.models.cvt import CvT
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


def draws_graph(model: Mapping[str, Any]) -> bool:
  """Whether a config's `model` entry has a token mixer that draws a random graph from a `seed`.

  Raises:
    ConfigError: unknown model or mixer.
  """
  parts = getattr(lookup(MODELS, model["name"], "model.name"), "PARTS", {})
  if "token_mixer" not in parts:
    return False
  table, default, _ = parts["token_mixer"]
  mixer = model.get("token_mixer", default)
  name = mixer if isinstance(mixer, str) else mixer["name"]
  return "seed" in options(lookup(table, name, "model.token_mixer.name"))


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
