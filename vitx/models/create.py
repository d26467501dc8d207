"""Makes networks from the `model` entry of a config."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.checks import PositiveInt, check_choice, check_fields, check_value
from vitx.config.fields import LORA, LoraSettings, find_lora
from vitx.config.registry import Table, build, check_options, fields_of, lookup, options

MODELS = Table(
  "vitx.models",
  cct="cct:CCT",
  convmixer="convmixer:ConvMixer",
  cvt="cvt:CvT",
  distilled_vit="deit:DistilledViT",
  levit="levit:LeViT",
  lv_vit="lv_vit:LVViT",
  pit="pit:PiT",
  resnet="resnet:ResNet",
  sparse_transformer="sparse_transformer:SparseTransformer",
  swin="swin:Swin",
  vit="vit:ViT",
)
MIXER_NAME = "model.token_mixer.name"
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}


def list_models() -> list[str]:
  """Returns the names that `create_model` knows."""
  return sorted(MODELS)


def create_model(name: str = "", *, num_classes: int | None = None, **fields: Any) -> nn.Module:
  """Makes a network.

  Args:
    name: The name of a network, one of `list_models()`, or `module:Class` for a class of your own.
    num_classes: The number of outputs of a classifier's head; None for other models.
    **fields: The model's fields. A named choice is a name or a dict with a `name`, for example
      `create_model("vit", num_classes=10, depth=4, token_mixer=dict(name="softmax"))`.

  Returns:
    A Flax module. `variables = initialize(model, key, images)` makes its initial variables, and
    `model.apply(variables, images)` computes logits for images (B, height, width, channels).

  Raises:
    ConfigError: If a name or a field is unknown, or a field does not accept its value.
  """
  model = lookup(MODELS, name, "model.name")
  fields = _build_fields(model, fields)
  if num_classes is not None:
    check_value(num_classes, "model.num_classes", PositiveInt)
    fields["num_classes"] = num_classes
  return model(**fields)


def check_model(model: Mapping[str, Any]) -> None:
  """Checks the names and fields of a config's `model` entry, except the number of classes."""
  apart = ("name", "num_classes", "lora")
  fields = {key: value for key, value in model.items() if key not in apart}
  if "lora" in model:
    check_options(LoraSettings, fields_of(model["lora"]), LORA)
    find_lora(model)
  _build_fields(lookup(MODELS, model.get("name", ""), "model.name"), fields)


def _build_fields(model: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the arguments of a model's class: names of parts become functions that make them."""
  check_options(model, fields, "model", hidden=("num_classes", "name"))
  check_fields(model, fields, "model")
  built = dict(fields)
  # Python code may pass a dtype; a config has its name.
  if "dtype" in built and built["dtype"] not in list(DTYPES.values()):
    built["dtype"] = DTYPES[check_choice(built["dtype"], "model.dtype", tuple(DTYPES))]
  for field, (table, default, hidden) in getattr(model, "PARTS", {}).items():
    built[field] = build(table, built.get(field, default), f"model.{field}", hidden)
  return built


def model_from_config(model: Mapping[str, Any]) -> nn.Module:
  """Makes the network of a config's `model` entry, without adapters, see `vitx.models.lora`."""
  return create_model(**{field: value for field, value in model.items() if field != "lora"})


def initialize(model: nn.Module, rngs: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
  """Returns the random variables with which training starts.

  Flax's `model.init` makes the variables. If the model has a field `initialization`, this function
  then applies it, which draws some of the parameters again; `model.init` alone does not apply it.

  Args:
    model: The network, with or without a field `initialization`, `(key, params) -> params`.
    rngs: A key, or a dict of keys by stream with "params" among them.
    *args: The arguments of the model's call: images (B, height, width, channels) for a classifier.
    **kwargs: The keyword arguments of the model's call, such as `train`.
  """
  variables = dict(model.init(rngs, *args, **kwargs))
  initialization = getattr(model, "initialization", None)
  if initialization is not None:
    key = rngs["params"] if isinstance(rngs, Mapping) else rngs
    # A new key, so that these draws are independent of the modules' draws.
    variables["params"] = initialization(jax.random.fold_in(key, 1), variables["params"])
  return variables


def find_mixer(model: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the name and the fields of the token mixer of a config's `model` entry.

  If the entry does not set the mixer, it is the default of the network. A network without token
  mixers gives {}.
  """
  parts = _find_parts(model)
  if "token_mixer" not in parts:
    return {}
  return fields_of(model.get("token_mixer", parts["token_mixer"][1]))


def _find_parts(model: Mapping[str, Any]) -> Mapping[str, Any]:
  return getattr(lookup(MODELS, model.get("name", ""), "model.name"), "PARTS", {})


def resolve_model(model: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
  """Returns a config's `model` entry with the seed of its random graphs filled in.

  A token mixer that draws a random graph has a field `seed`. If the config does not set this field,
  the entry `token_mixer` becomes a dict in which `seed` is added. All else stays unchanged.

  Args:
    model: The entry `model` of the config.
    seed: The seed of the random graphs.
  """
  mixer = find_mixer(model)
  if not mixer or "seed" in mixer:
    return dict(model)
  table = _find_parts(model)["token_mixer"][0]
  has_seed = "seed" in options(lookup(table, mixer.get("name", ""), MIXER_NAME))
  return {**model, "token_mixer": {**mixer, "seed": seed}} if has_seed else dict(model)
