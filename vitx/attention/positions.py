"""Parameters of mixers whose shapes depend on the number of tokens or on the shape of the grid."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.errors import ConfigError

Shape = tuple[int, ...]


def make_grid_parameter(
  module: nn.Module,
  name: str,
  init: nn.initializers.Initializer,
  shape: Shape,
  fix: str = "another token_mixer",
) -> jax.Array:
  """Makes a float32 parameter whose entries belong to tokens or to places of the grid.

  A later call with the name of an existing parameter returns this parameter.

  Args:
    module: The module that owns the parameter.
    name: The name of the parameter.
    init: The initializer.
    shape: The shape that the parameter must have for the tokens of this call.
    fix: The advice at the end of the error's message: a setting that allows another grid.

  Raises:
    ConfigError: If the parameter exists with another shape, since it was made for another grid.
  """
  if not module.has_variable("params", name):
    return module.param(name, init, shape, jnp.float32)
  found: jax.Array = module.get_variable("params", name)
  check_grid(name, found.shape, shape, fix)
  return found


def check_grid(name: str, found: Shape, wanted: Shape, fix: str = "another token_mixer") -> None:
  """Checks that a parameter has the shape that the tokens of a call need.

  Args:
    name, fix: The arguments of `make_grid_parameter`.
    found: The shape of the parameter.
    wanted: The shape that the tokens need.

  Raises:
    ConfigError: If the shapes differ, since the parameter was made for another grid.
  """
  if found != wanted:
    raise ConfigError(
      f"token_mixer parameter {name!r} of shape {found} was made for another grid of tokens; this"
      f" grid needs shape {wanted}. Keep data.image_size, or use {fix}."
    )
