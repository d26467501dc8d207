"""Positions inside mixers: rotary embeddings, and parameters that belong to positions."""

import jax
import jax.numpy as jnp

from vitx.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.rotary import rotary_angles, rotate


def turned(
  rotary: str, base: float, layout: TokenLayout, *arrays: jax.Array
) -> tuple[jax.Array, ...]:
  """Queries or keys (B, N, H, D) with rotary positions, or as they are for "none".

  Raises:
    ConfigError: unknown kind, a head dim that does not fit, or a layout of another length.
  """
  if rotary == "none":
    return arrays
  try:
    angles = jnp.asarray(rotary_angles(layout, arrays[0].shape[-1], kind=rotary, base=base))
  except ValueError as error:
    raise ConfigError(f"token_mixer.{error}") from error
  return tuple(rotate(x, angles) for x in arrays)


def check_length(found: tuple[int, ...] | None, length: int, name: str) -> None:
  """Raises ConfigError if a parameter made for another number of tokens is called with `length`.

  Args:
    found: shape of the parameter, tokens first; none: it does not exist yet.
    length: N of the call.
    name: of the parameter.
  """
  if found is not None and found[0] != length:
    raise ConfigError(
      f"token_mixer parameter {name!r} was made for {found[0]} tokens and is called with {length}:"
      " its weights belong to positions; keep data.image_size, or use another token_mixer"
    )
