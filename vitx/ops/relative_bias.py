"""Relative position bias without the N x N bias: queries and keys widened by a few channels.

A bias that depends on the places of query i and key j alone is a product, e_i T e_j with one-hot e:
appending T[place of i] to the query and e_j to the key adds it to their logit, exactly and on any
path that computes logits.
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
  """Where tokens stand in a box of places.

  Attributes:
    extents: of the box.
    place: int (N,), the place in the unrolled box; -1 for no place, where the bias is zero.
  """

  extents: tuple[int, ...]
  place: np.ndarray


def axial_places(layout: TokenLayout) -> list[Places]:
  """Returns a box of one axis for every axis of the grid; prefix tokens have no place."""
  tokens = np.arange(layout.length)
  return [
    Places((extent,), np.where(tokens < layout.prefix, -1, coordinate))
    for extent, coordinate in zip(layout.grid, coordinates(layout, tokens), strict=True)
  ]


def table_shape(extents: Sequence[int]) -> tuple[int, ...]:
  """Returns (2 e - 1, ...): the differences of two places, for each axis."""
  return tuple(2 * extent - 1 for extent in extents)


def between_places(table: Float[Array, "H ..."], extents: tuple[int, ...]) -> Float[Array, "H P P"]:
  """Returns the bias between any two places.

  Args:
    table: (H, 2 e - 1, ...), by difference: entry e - 1 is that of no difference.
    extents: e, for each axis.

  Returns:
    (H, P, P) by (query's place, key's place), P the product of the extents.
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
    q, k: (B, N, H, D).
    tables: (H, 2 e - 1, ...) each, by the difference of places; their biases add up.
    places: of all tokens of a layout, one for each table.
    scale: that the logits will be multiplied by; the bias is not.
    at: int (N,), which tokens of the layout these are; None for all.

  Returns:
    (B, N, H, D + E) each, E the number of places.
  """
  rows, ones = [], []
  for table, (extents, found) in zip(tables, places, strict=True):
    place = jnp.asarray(found) if at is None else jnp.asarray(found)[at]
    one_hot = place[:, None] == np.arange(np.prod(extents))  # (N, P)
    row = jnp.moveaxis(between_places(table, extents)[:, jnp.maximum(place, 0)], 0, 1)  # (N, H, P)
    rows.append(jnp.where(place[:, None, None] < 0, 0, row / scale))
    ones.append(one_hot[:, None])

  def append(x: jax.Array, parts: list) -> jax.Array:
    extra = jnp.concatenate([jnp.asarray(part, x.dtype) for part in parts], axis=-1)
    return jnp.concatenate([x, jnp.broadcast_to(extra, (*x.shape[:3], extra.shape[-1]))], axis=-1)

  return append(q, rows), append(k, ones)
