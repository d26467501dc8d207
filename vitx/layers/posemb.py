"""Positions: embeddings that are added to the tokens, and rotation, which the mixers apply."""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vitx.config.checks import NonNegative, Positive
from vitx.ops.layout import TokenLayout


class LearnedPosition(nn.Module):
  """One learned vector per token (Dosovitskiy et al. 2021, equation 1).

  Attributes:
    stddev: The standard deviation of the normal initialization.
    prefix: Whether the tokens in front of the grid (class token) have a vector too.
  """

  stddev: NonNegative = 0.02
  prefix: bool = True

  @nn.compact
  def __call__(self, x: jax.Array, layout: TokenLayout, at: jax.Array | None = None) -> jax.Array:
    """Adds a position vector to each token (B, N, C).

    `at` gives the indices of these tokens in the layout, integers (N,); None means all, in order.
    """
    bare = 0 if self.prefix else layout.prefix
    shape = (1, layout.length - bare, x.shape[-1])
    table = self.param("table", nn.initializers.normal(self.stddev), shape, jnp.float32)
    table = jnp.pad(table.astype(x.dtype), ((0, 0), (bare, 0), (0, 0)))
    return x + (table if at is None else table[:, at])


class AxesPosition(nn.Module):
  """One learned table for each axis of the grid, with one vector for each coordinate.

  The position vector of a token is the sum of the vectors of its coordinates. (Child et al. 2019,
  section 5.3: row, column and channel of images, row and column of text.)

  Attributes:
    stddev: The initial standard deviation of a position vector's entries.
  """

  stddev: NonNegative = 0.01

  @nn.compact
  def __call__(self, x: jax.Array, layout: TokenLayout, at: jax.Array | None = None) -> jax.Array:
    """Adds a position vector to each token (B, N, C).

    `at` gives the indices of these tokens in the layout, integers (N,); None means all, in order.
    Prefix tokens have no coordinates, so there must be none.
    """
    axes = len(layout.grid)
    init = nn.initializers.normal(self.stddev / axes**0.5)
    places = jnp.asarray(np.indices(layout.grid).reshape(axes, -1).astype(np.int32))  # (A, N)
    for axis, extent in enumerate(layout.grid):
      table = self.param(f"axis_{axis}", init, (extent, x.shape[-1]), jnp.float32)
      place = places[axis] if at is None else places[axis, at]
      x = x + jnp.asarray(table)[place].astype(x.dtype)
    return x


class SineCosinePosition(nn.Module):
  """Fixed sines and cosines of a token's place in the grid (He et al. 2022, masked autoencoders).

  Each of the A axes of the grid has C / A of the C channels: first the sines of its coordinate
  times base^(-2jA/C) for j = 0, 1, ..., then the cosines. Prefix tokens have zeros.

  Attributes:
    base: The base of the geometric series of frequencies.
  """

  base: Positive = 10000.0

  def __call__(self, x: jax.Array, layout: TokenLayout, at: jax.Array | None = None) -> jax.Array:
    """Adds a position vector to each token (B, N, C).

    `at` gives the indices of these tokens in the layout, integers (N,); None means all, in order.
    """
    table = jnp.asarray(sine_cosine_table(layout, x.shape[-1], self.base), x.dtype)
    return x + (table if at is None else table[at])


def sine_cosine_table(layout: TokenLayout, width: int, base: float = 10000.0) -> np.ndarray:
  """Returns the vectors that `SineCosinePosition` adds to N tokens, float32 (N, C).

  The width must be a multiple of twice the number of axes.
  """
  axes = len(layout.grid)
  part = width // axes
  coordinates = np.indices(layout.grid).reshape(axes, -1).T  # (N - prefix, A)
  frequencies = base ** (-2.0 * np.arange(part // 2) / part)
  angles = coordinates[:, :, None] * frequencies
  grid = np.concatenate([np.sin(angles), np.cos(angles)], axis=2).reshape(len(angles), width)
  return np.concatenate([np.zeros((layout.prefix, width)), grid]).astype(np.float32)


class RotaryPosition(nn.Module):
  """Rotary positions: every mixer rotates its queries and keys by their places (Su et al. 2021).

  Attributes:
    kind: The position that determines the rotation. "sequence" is the index in the unrolled grid.
      "axial" is row and column, each for one half of the channels. "centered" is "axial" with
      distances from the center of the image, so that borders have equal positions for every size of
      the grid (Siméoni et al. 2025; DINOv3 has a base of 100).
    base: The base of the geometric series of frequencies.
    unused_table: Whether there is a learned table that nothing uses, as in some published code. It
      counts among the parameters, and weight decay shrinks it.
    stddev: The standard deviation of the unused table's normal initialization.
  """

  kind: Literal["sequence", "axial", "centered"] = "sequence"
  base: Positive = 10000.0
  unused_table: bool = False
  stddev: NonNegative = 0.02

  @nn.compact
  def __call__(self, x: jax.Array, layout: TokenLayout, at: jax.Array | None = None) -> jax.Array:
    """Returns the tokens (B, N, C) unchanged; the mixers apply the rotation."""
    if self.unused_table:
      shape = (1, layout.length, x.shape[-1])
      self.param("table", nn.initializers.normal(self.stddev), shape, jnp.float32)
    return x

  @property
  def mixer_fields(self) -> dict[str, Any]:
    """Returns the fields `rotary` and `rotary_base`, which the model sets in its token mixers."""
    return {"rotary": self.kind, "rotary_base": self.base}


class NoPosition(nn.Module):
  """No positions: the tokens stay unchanged."""

  def __call__(self, x: jax.Array, layout: TokenLayout, at: jax.Array | None = None) -> jax.Array:
    """Returns the tokens (B, N, C) unchanged."""
    return x


POSITIONS = {
  "axes": AxesPosition,
  "learned": LearnedPosition,
  "none": NoPosition,
  "rope": RotaryPosition,
  "sincos": SineCosinePosition,
}
