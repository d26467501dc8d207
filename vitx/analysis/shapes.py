"""The variables of a network before any is computed."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.models import initialize


def variable_shapes(model: nn.Module, shape: tuple[int, ...]) -> Any:
  """Returns all variables as shapes; traces `initialize`, so that its errors are raised too.

  Args:
    model: a network.
    shape: of the images that it is called with, (B, height, width, channels).
  """
  images = jax.ShapeDtypeStruct(shape, jnp.float32)
  return jax.eval_shape(lambda key, x: initialize(model, key, x), jax.random.key(0), images)
