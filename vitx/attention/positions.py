"""Parameters of mixers whose shape depends on the number of tokens or on their places."""

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

  Args:
    module: The module that owns the parameter.
    name: The name of the parameter.
    init: The initializer.
    shape: The shape for the call's tokens.
    fix: The part of the config that would allow another grid, for the error.

  Raises:
    ConfigError: The parameter was made for another grid.
  """
  if module.has_variable("params", name):
    check_grid(name, module.get_variable("params", name).shape, shape, fix)
  return module.param(name, init, shape, jnp.float32)


def check_grid(name: str, found: Shape, wanted: Shape, fix: str = "another token_mixer") -> None:
  """Checks that a parameter was made for the call's tokens; the arguments are those above.

  Raises:
    ConfigError: The parameter was made for another grid.
  """
  if found != wanted:
    raise ConfigError(
      f"token_mixer parameter {name!r} of shape {found} was made for another grid of tokens; this"
      f" one needs {wanted}. Its entries belong to places: keep data.image_size, or use {fix}."
    )
