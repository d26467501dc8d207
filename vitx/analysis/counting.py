"""How many parameters a network has: all of them, and as torchsummary counts."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from vitx.analysis.shapes import variable_shapes
from vitx.errors import ConfigError
from vitx.models import model_from_config

# Parameters that PyTorch code holds as they are, outside a module called `weight` or `bias`, so
# that torchsummary (and the papers that print its count) does not see them: position table, class
# token and others beside it, Linformer's projections over the tokens, factor and offset of CvT's
# own normalization.
BARE = frozenset({"table", "cls", "extra", "key_slots", "value_slots", "gain", "shift"})


class Count(NamedTuple):
  """Parameters of a network.

  Attributes:
    total: every one.
    summary: by torchsummary's convention, which several papers print: those of layers only.
  """

  total: int
  summary: int


def count_parameters(model: nn.Module, shape: tuple[int, ...]) -> Count:
  """Counts by tracing `init` on images of that shape (B, height, width, channels)."""
  paths, _ = jax.tree.flatten_with_path(variable_shapes(model, shape)["params"])
  sizes = [(path[-1].key, math.prod(leaf.shape)) for path, leaf in paths]
  bare = sum(size for name, size in sizes if name in BARE)
  total = sum(size for _, size in sizes)
  return Count(total, total - bare)


def count(config: Mapping[str, Any]) -> Count:
  """The parameters of a config's network, by two conventions; nothing is allocated.

  Args:
    config: as `get_config` returns it, or resolved.

  Raises:
    ConfigError: the config does not say how many classes, or how large an image.
  """
  size = config["data"]["image_size"]
  if size is None:
    raise ConfigError(
      "data.image_size is not set: resolve the config against its source first, or set it"
    )
  model = model_from_config(config["model"])
  return count_parameters(model, (1, size, size, config["data"]["channels"]))
