"""The variables of a network before any is computed."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.models import initialize

Input = tuple[int, ...] | jax.ShapeDtypeStruct


def variable_shapes(model: nn.Module, inputs: Input) -> Any:
  """Returns all variables as shapes; traces `initialize`, so that its errors are raised too.

  Args:
    model: a network.
    inputs: what it is called with; a shape is that of images, (B, height, width, channels).
  """
  if isinstance(inputs, tuple):
    inputs = jax.ShapeDtypeStruct(inputs, jnp.float32)
  return jax.eval_shape(lambda key, x: initialize(model, key, x), jax.random.key(0), inputs)
