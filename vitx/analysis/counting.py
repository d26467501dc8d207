"""How many parameters a network has: all of them, and as torchsummary counts."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from vitx.analysis.shapes import Input, variable_shapes
from vitx.config.errors import ConfigError
from vitx.models import model_from_config, names


class Count(NamedTuple):
  """Parameters of a network.

  Attributes:
    total: every one.
    summary: by torchsummary's convention, which several papers print: those of layers only.
  """

  total: int
  summary: int


def count_parameters(model: nn.Module, inputs: Input) -> Count:
  """Returns how many parameters a network has; `init` is traced, nothing is allocated.

  Args:
    model: a network.
    inputs: what it is called with; a shape is that of images, (B, height, width, channels).
  """
  return count_variables(variable_shapes(model, inputs))


def count_variables(variables: Any) -> Count:
  """Returns how many parameters there are among a network's variables, or their shapes."""
  paths, _ = jax.tree.flatten_with_path(variables["params"])
  sizes = [
    (jax.tree_util.keystr(path, simple=True, separator="/"), math.prod(leaf.shape))
    for path, leaf in paths
  ]
  bare = sum(size for name, size in sizes if names.is_bare(name))
  total = sum(size for _, size in sizes)
  return Count(total, total - bare)


def count(config: Mapping[str, Any]) -> Count:
  """Returns the parameters of a config's network, by two conventions; nothing is allocated.

  Args:
    config: as `get_config` returns it, or resolved.

  Raises:
    ConfigError: the config does not say how many classes, or how large an image.
  """
  model: Any = model_from_config(config["model"])
  if hasattr(model, "input_spec"):
    return count_parameters(model, model.input_spec)
  size = config["data"]["image_size"]
  if size is None:
    raise ConfigError(
      "data.image_size is not set: resolve the config against its source first, or set it"
    )
  height, width = (size, size) if isinstance(size, int) else size
  return count_parameters(model, (1, height, width, config["data"]["channels"]))
