"""Positions inside mixers: rotary embeddings, tables of bias, and parameters that fix N."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.relative_bias import Places, table_shape
from vitx.ops.rotary import rotary_angles, rotate


def apply_rope(
  rotary: str,
  base: float,
  layout: TokenLayout,
  *arrays: jax.Array,
  at: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
  """Rotates queries or keys by their position.

  Args:
    rotary: The kind of rotation: "sequence" by the place in the unrolled grid, "axial" by each
      coordinate, "none" not at all.
    base: The base of the frequencies.
    layout: The layout of all tokens.
    *arrays: The queries or keys, (B, N, H, D) each.
    at: The places in the layout of these tokens, int (N,), as in decoding; None means all places.

  Raises:
    ConfigError: If the kind is unknown, or if the head dim or the length does not fit.
  """
  if rotary == "none":
    return arrays
  try:
    angles = jnp.asarray(rotary_angles(layout, arrays[0].shape[-1], kind=rotary, base=base))
  except ValueError as error:
    raise ConfigError(f"token_mixer.{error}") from error
  angles = angles if at is None else angles[at]
  return tuple(rotate(x, angles) for x in arrays)


def bias_tables(module: nn.Module, places: Sequence[Places], heads: int) -> list[jax.Array]:
  """Creates the tables (H, 2 g - 1, ...) of a relative bias as `relative_bias_0`, ..., all zero.

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
          f"token_mixer parameter {name!r} of shape {found} was made for another grid, this one"
          f" needs {shape}: keep data.image_size, or use token_mixer.relative_bias='none'"
        )
    tables.append(module.param(name, nn.initializers.zeros, shape, jnp.float32))
  return tables


def check_length(found: tuple[int, ...], length: int, name: str) -> None:
  """Raises ConfigError if a parameter was made for another number of tokens than `length`.

  Args:
    found: The shape of the parameter, tokens first.
    length: The number of tokens N of the call.
    name: The name of the parameter.
  """
  if found[0] != length:
    raise ConfigError(
      f"token_mixer parameter {name!r} was made for {found[0]} tokens and is called with {length}:"
      " its weights belong to positions; keep data.image_size, or use another token_mixer"
    )
