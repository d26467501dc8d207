"""Which implementation every token mixer of a network runs."""

import flax.linen as nn

from vitx.analysis.shapes import variable_shapes
from vitx.attention.choices import implementation_of


def implementations(model: nn.Module, shape: tuple[int, ...]) -> dict[str, str]:
  """What "auto" picks, found by tracing `init` on images of `shape` (B, height, width, channels).

  Returns:
    "masked", "kernelized", or "auto" for a mixer with one path only, by the mixer's place in the
    network, such as "block_0/token_mixer".
  """
  found = {}

  def look(call, arguments, keywords, context):
    module = context.module
    if context.method_name == "__call__" and hasattr(module, "implementation"):
      found["/".join(module.path)] = implementation_of(module, arguments[0].shape[1])
    return call(*arguments, **keywords)

  with nn.intercept_methods(look):
    variable_shapes(model, shape)
  return found
