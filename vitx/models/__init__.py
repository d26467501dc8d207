"""Whole networks by name."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from vitx.errors import ConfigError, build, check_options, listing, lookup
from vitx.models.vit import ViT

MODELS = {"vit": ViT}
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


def _dtype(dtype: Any) -> Any:
  if not isinstance(dtype, str):
    return dtype
  if dtype not in DTYPES:
    raise ConfigError(f"model.dtype={dtype!r}; valid: {listing(DTYPES)}")
  return DTYPES[dtype]
