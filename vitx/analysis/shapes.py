"""The variables of a network before any is computed."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


def variable_shapes(model: nn.Module, shape: tuple[int, ...]) -> Any:
  """All variables as shapes; traces `init` on images of `shape` (B, height, width, channels)."""
  return jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32))
