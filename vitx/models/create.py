"""From a config's `model` entry to a network."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.checks import PositiveInt, check_choice, check_fields, check_value
from vitx.config.errors import ConfigError
from vitx.config.registry import build, check_options, fields_of, lookup, options
from vitx.models.cct import CCT
from vitx.models.convmixer import ConvMixer
from vitx.models.cvt import CvT
from vitx.models.deit import DistilledViT
from vitx.models.levit import LeViT
from vitx.models.lv_vit import LVViT
from vitx.models.pit import PiT
from vitx.models.resnet import ResNet
from vitx.models.sparse_transformer import SparseTransformer
from vitx.models.swin import Swin
from vitx.models.vit import ViT

MODELS = {
  "cct": CCT,
  "convmixer": ConvMixer,
  "cvt": CvT,
  "distilled_vit": DistilledViT,
  "levit": LeViT,
  "lv_vit": LVViT,
  "pit": PiT,
  "resnet": ResNet,
  "sparse_transformer": SparseTransformer,
  "swin": Swin,
  "vit": ViT,
}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}


def list_models() -> list[str]:
  """Returns the names that `create_model` knows."""
  return sorted(MODELS)


def create_model(name: str, *, num_classes: int | None = None, **fields: Any) -> nn.Module:
  """Makes a network.

  Args:
    name: one of `list_models()`, or `module:Class` of your own.
    num_classes: outputs of the head of a classifier; None for a model of another kind.
    **fields: the model's fields, named choices as a name or a dict with a `name`, for example
      `create_model("vit", num_classes=10, depth=4, token_mixer=dict(name="softmax"))`.

  Returns:
    A Flax module: `variables = initialize(model, key, images)` gives its starting values,
    `logits = model.apply(variables, images)` its outputs, images (B, height, width, channels).

  Raises:
    ConfigError: an unknown model, field, part or option (lists the valid ones), or a value that the
      field does not take.
  """
  model = lookup(MODELS, name, "model.name")
  fields = _build_fields(model, fields)
  if num_classes is not None or "num_classes" in options(model):
    check_value(num_classes, "model.num_classes", PositiveInt)
    fields["num_classes"] = num_classes
  return model(**fields)


def check_model(model: Mapping[str, Any]) -> None:
  """Holds a config's `model` entry to its names and fields, before the data tell the classes.

  Raises:
    ConfigError: an unknown model, part or option (lists the valid ones), or a value that the field
      does not take.
  """
  fields = {key: value for key, value in model.items() if key not in ("name", "num_classes")}
  _build_fields(lookup(MODELS, model.get("name", ""), "model.name"), fields)


def _build_fields(model: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of a model as it takes them: parts built, a dtype for its name."""
  check_options(model, fields, "model", hidden=("num_classes", "name"))
  check_fields(model, fields, "model")
  built = dict(fields)
  if "dtype" in built:
    built["dtype"] = _to_dtype(built["dtype"])
  for field, (table, default, hidden) in _parts(model).items():
    built[field] = build(table, built.get(field, default), f"model.{field}", hidden)
  return built


def model_from_config(model: Mapping[str, Any]) -> nn.Module:
  """Makes the network of a config's `model` entry, which says how many classes there are.

  Raises:
    ConfigError: `num_classes` is not set; a name or field is unknown, or a value cannot be.
  """
  made = lookup(MODELS, model.get("name", ""), "model.name")
  if model.get("num_classes") is None and "num_classes" in options(made):
    raise ConfigError("model.num_classes is not set: resolve the config against a source first")
  return create_model(**model)


def initialize(model: nn.Module, rngs: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
  """Returns the variables that training starts from.

  They are those of `model.init`, with the model's `initialization` applied to the parameters where
  it has that field. `model.init` itself is Flax's own and knows nothing of `initialization`.

  Args:
    model: a network, with a field `initialization`, `(key, params) -> params`, or without.
    rngs: a key, or a dict of keys by stream with "params" among them.
    *args: what the model is called with, images (B, height, width, channels) for a classifier.
    **kwargs: further arguments of that call, such as `train`.
  """
  variables = dict(model.init(rngs, *args, **kwargs))
  initialization = getattr(model, "initialization", None)
  if initialization is not None:
    key = rngs["params"] if isinstance(rngs, Mapping) else rngs
    # Not the key that the modules drew from.
    variables["params"] = initialization(jax.random.fold_in(key, 1), variables["params"])
  return variables


def resolve_model(model: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
  """Returns a config's `model` entry with the seed of its random graphs filled in.

  A token mixer that draws a graph has a field `seed`; where the entry sets none it becomes `seed`,
  and the mixer a dict with a `name`. All else stays as it is.

  Args:
    model: the config's entry.
    seed: of the graphs.

  Raises:
    ConfigError: unknown model, or a token mixer that cannot be built.
  """
  resolved = dict(model)
  parts = _parts(lookup(MODELS, model.get("name", ""), "model.name"))
  if "token_mixer" not in parts:
    return resolved
  table, default, hidden = parts["token_mixer"]
  given = model.get("token_mixer", default)
  mixer = build(table, given, "model.token_mixer", hidden)
  if "seed" in options(mixer.func) and "seed" not in mixer.keywords:
    resolved["token_mixer"] = {**fields_of(given), "seed": seed}
  return resolved


def _parts(model: Any) -> Mapping[str, tuple]:
  return getattr(model, "PARTS", {})


def _to_dtype(dtype: Any) -> Any:
  if dtype in list(DTYPES.values()):  # from Python; a config has names
    return dtype
  return DTYPES[check_choice(dtype, "model.dtype", tuple(DTYPES))]
