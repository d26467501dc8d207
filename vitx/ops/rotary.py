"""Rotary position embeddings (Su et al. 2021): queries and keys are rotated by their position."""

import jax.numpy as jnp
import numpy as np

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import Array, Float


def rotary_angles(
  layout: TokenLayout, head_dim: int, *, kind: str = "sequence", base: float = 10000.0
) -> np.ndarray:
  """Returns the angle by which each pair of channels of each token is rotated.

  A prefix token has position 0 and is not rotated. Unless the kind is "centered", positions on the
  grid count from 1 after a prefix and from 0 without one. So a class token has position 0 and the
  grid has positions 1, 2, ..., as in the published models with a class token.

  Args:
    layout: The layout of the N tokens.
    head_dim: The number D of channels of a head.
    kind: The kind of position. "sequence" rotates pair j of D / 2 by position * base^(-2j/D), with
      the position in the unrolled grid; "axial" gives each of the A grid axes D / A channels and
      rotates them by the coordinate on that axis. "centered" is "axial" with another coordinate
      (Siméoni et al. 2025, DINOv3): a token's distance from the center of the grid, from -2 pi at
      one border to 2 pi at the other, so that a larger grid has finer positions.
    base: The base of the geometric series of frequencies.

  Returns:
    The angles in radians, float32 (N, D / 2).
  """
  sequence = (layout.length - layout.prefix,)
  shape = {"sequence": sequence, "axial": layout.grid, "centered": layout.grid}[kind]
  axes = len(shape)
  if head_dim % (2 * axes):
    raise ConfigError(f"rotary={kind!r}: head_dim={head_dim} must be divisible by {2 * axes}.")
  coordinates = np.indices(shape).reshape(axes, -1).T.astype(np.float64)  # (N - prefix, A)
  if kind == "centered":
    coordinates = 2 * np.pi * ((2 * coordinates + 1) / shape - 1)
  elif layout.prefix:
    coordinates = coordinates + 1
  coordinates = np.concatenate([np.zeros((layout.prefix, axes)), coordinates])
  part = head_dim // axes
  frequencies = base ** (-2.0 * np.arange(part // 2) / part)
  angles = coordinates[:, :, None] * frequencies  # (N, A, D / 2A)
  return angles.reshape(-1, head_dim // 2).astype(np.float32)


def rotate(
  x: Float[Array, "B N H D"], angles: Float[np.ndarray | Array, "N half"]
) -> Float[Array, "B N H D"]:
  """Rotates the interleaved pairs (x_2j, x_2j+1) of each head.

  Args:
    x: The queries or keys, (B, N, H, D).
    angles: The angles, (N, D / 2).

  Returns:
    The rotated array (B, N, H, D) in the dtype of `x`, computed in float32.
  """
  cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
  pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
  even, odd = pairs[..., 0], pairs[..., 1]
  turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
  return turned.reshape(x.shape).astype(x.dtype)
