"""Parameters of mixers that depend on the number of tokens or on their places."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.errors import ConfigError
from vitx.ops.relative_bias import Places, table_shape


def bias_tables(module: nn.Module, places: Sequence[Places], heads: int) -> list[jax.Array]:
  """Creates the tables (H, 2 g - 1, ...) of a relative bias, `relative_bias_0`, ..., as zeros.

  Published code draws them with a standard deviation of 0.02, which is close to zero. With zeros a
  mixer starts exactly as it would without a bias.

  Raises:
    ConfigError: If the parameters were made for another grid.
  """
  tables = []
  for number, (extents, _) in enumerate(places):
    name, shape = f"relative_bias_{number}", (heads, *table_shape(extents))
    if module.has_variable("params", name):
      found: tuple[int, ...] = module.get_variable("params", name).shape
      if found != shape:
        raise ConfigError(
          f"token_mixer parameter {name!r} of shape {found} was made for another grid; this one"
          f" needs {shape}. Keep data.image_size, or use token_mixer.relative_bias='none'."
        )
    tables.append(module.param(name, nn.initializers.zeros, shape, jnp.float32))
  return tables


def check_length(module: nn.Module, name: str, length: int, leaf: str | None = None) -> None:
  """Checks that a parameter with an entry for each token was made for the call's number of tokens.

  Args:
    module: The module that owns the parameter.
    name: The name of the parameter, whose first axis is the tokens, or of its submodule.
    length: The number of tokens N of the call.
    leaf: The name of the parameter in the submodule; None if `name` is the parameter's.

  Raises:
    ConfigError: The parameter was made for another number of tokens.
  """
  if not module.has_variable("params", name):
    return
  found: Any = module.get_variable("params", name)
  made_for = (found if leaf is None else found[leaf]).shape[0]
  if made_for != length:
    raise ConfigError(
      f"token_mixer parameter {name!r} was made for {made_for} tokens and is called with {length}."
      " Its weights belong to positions: keep data.image_size, or use another token_mixer."
    )
