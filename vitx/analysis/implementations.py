"""The implementations that the token mixers of a network run."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.analysis.shapes import Input, variable_shapes
from vitx.ops.implementation import recording_implementations


def implementations(model: nn.Module, inputs: Input, examples: int | None = None) -> dict[str, str]:
  """Returns the implementations that "auto" picks, found by tracing `init`.

  Args:
    model: A network.
    inputs: The inputs of the network, or the shape of images, (B, rows, columns, C).
    examples: The batch size B, or `None` for the batch size of `inputs`.

  Returns:
    "masked", "kernelized", or "auto" for a mixer with only one path, by the mixer's path in the
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
  """Returns the implementations that one mixer's ops picked, joined by "+"; "auto" without ops."""
  return "+".join(sorted({choice.implementation for choice in choices})) or "auto"
