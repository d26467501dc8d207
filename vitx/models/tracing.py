"""Finds properties of a network by tracing it, without computing or allocating arrays."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.models.names import POSITIONS
from vitx.ops.layout import TokenLayout


def token_layout(model: nn.Module, shape: tuple[int, ...]) -> TokenLayout | None:
  """Returns the layout of the tokens to which a network adds positions; `None` if it adds none.

  Args:
    model: The network.
    shape: The shape of the images of a call, (B, height, width, channels).
  """
  layouts: list[TokenLayout] = []

  def look(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    if context.method_name == "__call__" and context.module.name == POSITIONS:
      layouts.extend(x for x in (*args, *kwargs.values()) if isinstance(x, TokenLayout))
    return call(*args, **kwargs)

  with nn.intercept_methods(look):
    images = jax.ShapeDtypeStruct(shape, jnp.float32)
    jax.eval_shape(lambda key, x: model.init(key, x, train=False), jax.random.key(0), images)
  return layouts[0] if layouts else None
