"""Finds the implementation, "masked" or "kernelized", of each token mixer of a network.

A masked implementation computes the whole attention matrix; a kernelized one does not.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.analysis.shapes import Input, unroll, variable_shapes
from vitx.ops.implementation import Choice, recording_implementations


def describe_choices(choices: list[Choice]) -> str:
  """Returns the implementations that the operations of one mixer used, joined by "+".

  A mixer whose operations have only one implementation gives "auto".
  """
  return "+".join(sorted({choice.implementation for choice in choices})) or "auto"


def implementations(
  model: nn.Module,
  inputs: Input,
  examples: int | None = None,
  describe: Callable[[list[Choice]], Any] = describe_choices,
) -> dict[str, Any]:
  """Finds the implementation that each token mixer uses, by tracing `init` without running it.

  Args:
    model: A network.
    inputs: The inputs of the network, or the shape of images, (B, height, width, channels).
    examples: The batch size B, on which the choice may depend; `None` means the batch size of
      `inputs`.
    describe: A function that describes the choices of one mixer's operations.

  Returns:
    The description of each mixer's choices by the mixer's path in the network, such as
    "block_0/token_mixer". By default it is "masked", "kernelized", or "auto" for a mixer with only
    one implementation.
  """
  if isinstance(inputs, tuple):
    inputs = jax.ShapeDtypeStruct(inputs, jnp.float32)
  if examples is not None:
    inputs = jax.ShapeDtypeStruct((examples, *inputs.shape[1:]), inputs.dtype)
  picks: dict[str, Any] = {}

  def look(call, arguments, keywords, context):
    module: Any = context.module
    if context.method_name != "__call__" or not hasattr(module, "implementation"):
      return call(*arguments, **keywords)
    with recording_implementations() as picked:
      out = call(*arguments, **keywords)
    picks["/".join(module.path)] = describe(picked)
    return out

  with nn.intercept_methods(look):
    variable_shapes(unroll(model), inputs)
  return picks
