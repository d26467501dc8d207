"""Adds a relative position bias to attention logits without an N x N array.

A bias that depends only on the places of query i and key j is a product e_i T e_j. The matrix T has
the bias between any two places, and e_i and e_j are one-hot vectors of the places. So this module
appends row T[place of i] to query i as further channels, and e_j to key j. The dot product of the
longer vectors contains the bias exactly, on any path that computes logits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.indices import coordinates
from vitx.ops.shapes import Array, Float, Int


class Places(NamedTuple):
  """The places of tokens in a box, such as a window or one axis of the grid.

  Attributes:
    extents: The extents of the box.
    place: The place of each token in the unrolled box, int (N,); -1 for a token without a place,
      whose bias is zero.
  """

  extents: tuple[int, ...]
  place: np.ndarray


def axial_places(layout: TokenLayout) -> list[Places]:
  """Returns the places of the tokens along each axis of the grid, one box for each axis.

  Prefix tokens have no place.
  """
  tokens = np.arange(layout.length)
  return [
    Places((extent,), np.where(tokens < layout.prefix, -1, coordinate))
    for extent, coordinate in zip(layout.grid, coordinates(layout, tokens), strict=True)
  ]


def table_shape(extents: Sequence[int]) -> tuple[int, ...]:
  """Returns the shape of a table of biases by difference of places: 2 e - 1 for each extent e."""
  return tuple(2 * extent - 1 for extent in extents)


def between_places(table: Float[Array, "H ..."], extents: tuple[int, ...]) -> Float[Array, "H P P"]:
  """Returns the bias between any two places.

  Args:
    table: The bias for each difference of places, (H, 2 e - 1, ...); entry e - 1 is for the
      difference zero.
    extents: The extent e of each axis.

  Returns:
    The bias (H, P, P) by query place and key place. P is the product of the extents.
  """
  points = np.indices(extents).reshape(len(extents), -1)  # (A, P)
  apart = points[:, :, None] - points[:, None, :] + np.array(extents)[:, None, None] - 1
  flat = np.ravel_multi_index(tuple(apart), table_shape(extents))
  return table.reshape(table.shape[0], -1)[:, flat]


def fold_bias_into_qk(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  tables: Sequence[jax.Array],
  places: Sequence[Places],
  scale: float,
  at: Int[Array, " N"] | None = None,
) -> tuple[Float[Array, "B N H W"], Float[Array, "B N H W"]]:
  """Widens queries and keys so that their scaled products contain the bias.

  (Liu et al. 2021, equation 4.)

  Args:
    q, k: The queries and the keys, (B, N, H, D).
    tables: The tables of biases by difference of places, (H, 2 e - 1, ...) each. Biases from
      several tables are added.
    places: The places of all tokens of a layout, one entry for each table.
    scale: The factor by which the logits will be multiplied; it does not affect the bias.
    at: The index in the layout of each token of q and k, int (N,); `None` for all tokens.

  Returns:
    The widened queries and keys, (B, N, H, D + E) each. E is the number of places in the boxes
    of all entries of `places`.
  """
  rows, ones = [], []
  for table, (extents, token_places) in zip(tables, places, strict=True):
    place = jnp.asarray(token_places) if at is None else jnp.asarray(token_places)[at]
    one_hot = place[:, None] == np.arange(np.prod(extents))  # (N, P)
    biases = jnp.asarray(between_places(table, extents))
    row = jnp.moveaxis(biases[:, jnp.maximum(place, 0)], 0, 1)  # (N, H, P)
    rows.append(jnp.where(place[:, None, None] < 0, 0, row / scale))
    ones.append(one_hot[:, None])

  def append(x: jax.Array, parts: list) -> jax.Array:
    extra = jnp.concatenate([jnp.asarray(part, x.dtype) for part in parts], axis=-1)
    return jnp.concatenate([x, jnp.broadcast_to(extra, (*x.shape[:3], extra.shape[-1]))], axis=-1)

  return append(q, rows), append(k, ones)
