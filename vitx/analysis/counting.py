"""Counts all parameters of a network, and those that PyTorch's torchsummary would count."""

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from vitx.analysis.shapes import Input, variable_shapes
from vitx.models import names


class Count(NamedTuple):
  """The number of parameters of a network, by two conventions.

  Attributes:
    total: The number of all parameters.
    summary: The number that torchsummary counts and several papers print. It leaves out parameters
      outside PyTorch's layers, such as position embeddings and the class token.
  """

  total: int
  summary: int


def count_parameters(model: nn.Module, inputs: Input) -> Count:
  """Counts the parameters of a network by tracing its `init`, which allocates nothing.

  Args:
    model: A network.
    inputs: The inputs of the network, or the shape of images, (B, height, width, channels).
  """
  return count_variables(variable_shapes(model, inputs))


def count_variables(variables: Any) -> Count:
  """Counts the parameters in a network's variable collections, of arrays or shapes."""
  paths, _ = jax.tree.flatten_with_path(variables["params"])
  sizes = [
    (jax.tree_util.keystr(path, simple=True, separator="/"), math.prod(leaf.shape))
    for path, leaf in paths
  ]
  layerless = sum(size for name, size in sizes if names.has_no_layer(name))
  total = sum(size for _, size in sizes)
  return Count(total, total - layerless)
