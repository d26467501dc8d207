"""Which implementation every token mixer of a network runs."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.analysis.shapes import Input, variable_shapes
from vitx.ops.implementation import recording_implementations


def implementations(model: nn.Module, inputs: Input, examples: int | None = None) -> dict[str, str]:
  """Returns what "auto" picks, found by tracing `init`, for images (B, rows, columns, C).

  Args:
    model: a network.
    inputs: what it is called with; a shape is that of images.
    examples: B, where it is not that of `inputs`.

  Returns:
    "masked", "kernelized", or "auto" for a mixer with one path only, by the mixer's place in the
    network, such as "block_0/token_mixer".
  """
  if isinstance(inputs, tuple):
    inputs = jax.ShapeDtypeStruct(inputs, jnp.float32)
  if examples is not None:
    inputs = jax.ShapeDtypeStruct((examples, *inputs.shape[1:]), inputs.dtype)
  found: dict[str, str] = {}

  def look(call, arguments, keywords, context):
    module: Any = context.module
    if context.method_name != "__call__" or not hasattr(module, "implementation"):
      return call(*arguments, **keywords)
    with recording_implementations() as picked:
      out = call(*arguments, **keywords)
    found["/".join(module.path)] = describe_choices(picked)
    return out

  with nn.intercept_methods(look):
    variable_shapes(model, inputs)
  return found


def describe_choices(choices: list) -> str:
  """Returns what the ops of one mixer picked, of which all pick the same, or "auto" without ops."""
  return "+".join(sorted({choice.implementation for choice in choices})) or "auto"
