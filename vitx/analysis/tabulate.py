"""A table of the modules of a network, found by tracing: nothing is computed or allocated."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import flax.linen as nn
import jax

from vitx.analysis.shapes import Input, unroll, variable_shapes


@dataclasses.dataclass(frozen=True)
class LayerSizes:
  """The sizes of one module of a network.

  Attributes:
    path: The names from the network down to the module; empty for the network.
    kind: The name of the module's class.
    output: The shape of the first array that the module returned.
    shapes: The shapes of the module's own parameters, by name.
    parameters: The number of parameters of the module and of all modules inside it.
  """

  path: tuple[str, ...]
  kind: str
  output: tuple[int, ...]
  shapes: dict[str, tuple[int, ...]]
  parameters: int


def list_layers(model: nn.Module, inputs: Input) -> list[LayerSizes]:
  """Returns the modules of a network in the order of their first call.

  Modules without parameters that keep the shape, such as dropout, are left out.

  Args:
    model: A network.
    inputs: The inputs of the network, or the shape of images, (B, height, width, channels).
  """
  calls: dict[tuple[str, ...], tuple] = {}

  def record(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    if context.method_name != "__call__":
      return call(*args, **kwargs)
    calls.setdefault(context.module.path, ())  # The keys are in the order of first calls.
    out = call(*args, **kwargs)
    calls[context.module.path] = (type(context.module).__name__, _shape(args), _shape(out))
    return out

  with nn.intercept_methods(record):
    variables = variable_shapes(unroll(model), inputs)
  paths, _ = jax.tree.flatten_with_path(variables["params"])
  leaves = {tuple(entry.key for entry in path): leaf.shape for path, leaf in paths}
  layers = []
  for path, (kind, input_shape, output) in calls.items():
    below = {name: size for name, size in leaves.items() if name[: len(path)] == path}
    if not below and input_shape == output:
      continue
    shapes = {name[-1]: size for name, size in below.items() if len(name) == len(path) + 1}
    layers.append(LayerSizes(path, kind, output, shapes, sum(map(math.prod, below.values()))))
  return layers


def list_cells(layers: Sequence[LayerSizes]) -> list[tuple[str, ...]]:
  """Returns the cells of a table of modules; the first row is the header.

  Names are indented by their depth in the network.
  """
  rows: list[tuple[str, ...]] = [("module", "", "output", "parameters", "of its own")]
  for layer in layers:
    name = "  " * len(layer.path) + (layer.path[-1] if layer.path else "network")
    shapes = ", ".join(f"{key} {format_shape(size)}" for key, size in layer.shapes.items())
    rows.append((name, layer.kind, format_shape(layer.output), f"{layer.parameters:,}", shapes))
  return rows


def format_shape(shape: Iterable[int]) -> str:
  """Returns a shape as text, such as 32x32x3."""
  return "x".join(map(str, shape)) or "scalar"


def _shape(tree: Any) -> tuple[int, ...]:
  arrays = [x for x in jax.tree.leaves(tree) if hasattr(x, "shape")]
  return arrays[0].shape if arrays else ()
