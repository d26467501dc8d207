"""Positions inside mixers: rotary embeddings, tables of bias, parameters that fix N."""

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
    rotary: by the place in the unrolled grid, "sequence", or by each coordinate, "axial"; "none"
      changes nothing.
    base: of the frequencies.
    layout: of all tokens.
    *arrays: (B, N, H, D) each.
    at: int (N,), which tokens of the layout these are, as when decoding; None for all.

  Raises:
    ConfigError: unknown kind, a head dim that does not fit, or a layout of another length.
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
  """Makes the tables (H, 2 g - 1, ...) of a relative bias, `relative_bias_0`, ...; zero at first.

  Published tables start at a normal of 0.02, which is nearly the same; from zero a mixer starts as
  it would without.

  Raises:
    ConfigError: they were made for another grid.
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
  """Raises ConfigError if a parameter made for another number of tokens is called with `length`.

  Args:
    found: shape of the parameter, tokens first.
    length: N of the call.
    name: of the parameter.
  """
  if found[0] != length:
    raise ConfigError(
      f"token_mixer parameter {name!r} was made for {found[0]} tokens and is called with {length}:"
      " its weights belong to positions; keep data.image_size, or use another token_mixer"
    )
