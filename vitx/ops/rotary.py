"""Rotary position embeddings (Su et al. 2021): queries and keys turned by their position."""

import jax.numpy as jnp
import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import Array, Float

KINDS = ("sequence", "axial")


def rotary_angles(
  layout: TokenLayout, head_dim: int, *, kind: str = "sequence", base: float = 10000.0
) -> np.ndarray:
  """Returns the angle by which each pair of channels of each token is turned.

  A prefix token stands at position 0 and is not turned; behind a prefix, positions on the grid
  count from 1, without one from 0. So a class token takes position 0 and the grid 1, 2, ..., as in
  the published models with one.

  Args:
    layout: of the N tokens.
    head_dim: D.
    kind: "sequence": pair j of D / 2 turns by position * base^(-2j/D), the position that in the
      unrolled grid; "axial": of A grid axes each has D / A channels, turned so by its coordinate.
    base: of the geometric series of frequencies.

  Returns:
    float32 (N, D / 2).

  Raises:
    ValueError: unknown kind, or D does not split into pairs for every axis.
  """
  if kind not in KINDS:
    raise ValueError(f"rotary={kind!r}; valid: none, {', '.join(KINDS)}")
  shape = layout.grid if kind == "axial" else (layout.length - layout.prefix,)
  axes = len(shape)
  if head_dim % (2 * axes):
    raise ValueError(
      f"rotary={kind!r} turns pairs of channels along {axes} axes: head_dim={head_dim} must be"
      f" divisible by {2 * axes}"
    )
  first = 1 if layout.prefix else 0
  coordinates = np.indices(shape).reshape(axes, -1).T + first  # (N - prefix, A)
  coordinates = np.concatenate([np.zeros((layout.prefix, axes)), coordinates])
  part = head_dim // axes
  frequencies = base ** (-2.0 * np.arange(part // 2) / part)
  angles = coordinates[:, :, None] * frequencies  # (N, A, D / 2A)
  return angles.reshape(-1, head_dim // 2).astype(np.float32)


def rotate(
  x: Float[Array, "B N H D"], angles: Float[np.ndarray | Array, "N half"]
) -> Float[Array, "B N H D"]:
  """Turns the interleaved pairs (x_2j, x_2j+1) of each head.

  Args:
    x: (B, N, H, D).
    angles: (N, D / 2).

  Returns:
    (B, N, H, D) in the dtype of `x`, computed in float32.
  """
  cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
  pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
  even, odd = pairs[..., 0], pairs[..., 1]
  turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
  return turned.reshape(x.shape).astype(x.dtype)
