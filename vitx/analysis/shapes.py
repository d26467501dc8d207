"""Finds the shapes of a network's variables without computing the variables."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.models import initialize

Input = tuple[int, ...] | jax.ShapeDtypeStruct


def unroll(model: nn.Module) -> nn.Module:
  """Returns a network with equal parameters that runs its layers one by one, not in a loop.

  The blocks inside a loop over layers have no paths.
  """
  return model.clone(layer_cycle=0) if getattr(model, "layer_cycle", 0) else model


def variable_shapes(model: nn.Module, inputs: Input) -> Any:
  """Returns the shapes of all variables of a network, by tracing `initialize` without computing.

  It raises the errors of `initialize`.

  Args:
    model: A network.
    inputs: The inputs of the network, or the shape of images, (B, height, width, channels).

  Returns:
    The variable collections with `jax.ShapeDtypeStruct` in place of arrays.
  """
  if isinstance(inputs, tuple):
    inputs = jax.ShapeDtypeStruct(inputs, jnp.float32)
  make = functools.partial(initialize, model, train=False)
  return jax.eval_shape(make, jax.random.key(0), inputs)
