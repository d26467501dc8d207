"""Attention in which each query has its own set of keys, without an N x M array in memory.

The forward pass computes one tile of queries after another, and the backward pass computes the
tiles again. The caller's function `select` chooses the keys of a tile. It returns a view of them,
`Gathered` or `Hidden`, and may save a few numbers per query for the backward pass.
"""

import dataclasses
import math
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from vitx.ops.kernels import tiling
from vitx.ops.shapes import Array, Float


@dataclasses.dataclass(frozen=True)
class Gathered:
  """A view in which each of c queries of one head has a list of K keys.

  Logits are (c, K).

  Attributes:
    indices: The indices of the keys, int (c, K).
    visible: A mask (c, K), False where an index only fills the array; `None` if all are valid.
  """

  indices: jax.Array
  visible: jax.Array | None

  @staticmethod
  def arrange(table: jax.Array) -> jax.Array:
    """Returns keys or values (M, D) in the form that `products` reads: unchanged."""
    return table

  def products(self, rows: jax.Array, table: jax.Array) -> jax.Array:
    """Returns the products (c, K) of each query's row with the K rows of `table` on its list.

    Args:
      rows: A vector for each query, (c, D).
      table: The keys or values, (M, D).
    """
    return jnp.einsum("cd,ckd->ck", rows, self._read(table))

  def weigh(self, weights: jax.Array, table: jax.Array) -> jax.Array:
    """Returns each query's weighted sum, (c, D), of the K rows of `table` (M, D) on its list."""
    return jnp.einsum("ck,ckd->cd", weights, self._read(table))

  def spread(self, total: jax.Array, weights: jax.Array, rows: jax.Array) -> jax.Array:
    """Adds each query's row, times a weight for each key on its list, to the totals of these keys.

    Args:
      total: The totals of the keys, (M, D).
      weights: The weights, (c, K).
      rows: A vector for each query, (c, D).
    """
    added = weights[:, :, None] * rows[:, None]
    return total.at[self.indices].add(added, mode="promise_in_bounds")

  def _read(self, table: jax.Array) -> jax.Array:
    return table.at[self.indices].get(mode="promise_in_bounds").astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Hidden:
  """A view in which c queries of one head share all M keys, and a mask hides most keys.

  Logits are (c, M), with -inf for hidden keys.

  Attributes:
    visible: A mask (c, M), True = may be attended.
  """

  visible: jax.Array

  @staticmethod
  def arrange(table: jax.Array) -> jax.Array:
    """Returns keys or values (M, D) in the form that `products` reads: transposed, (D, M).

    Transposing them once saves a transposition in every tile.
    """
    return table.T

  def products(self, rows: jax.Array, table: jax.Array) -> jax.Array:
    return tiling.product(rows, table)

  def weigh(self, weights: jax.Array, table: jax.Array) -> jax.Array:
    return tiling.product(weights, table)

  def spread(self, total: jax.Array, weights: jax.Array, rows: jax.Array) -> jax.Array:
    return total + tiling.product(rows.T, weights)


View = Gathered | Hidden


class KeySelector(Protocol):
  """A function that selects the keys of some queries of one head.

  The function returns a view of the keys, and a tree of arrays (c, ...). The backward pass gives it
  this tree as the argument `saved`; in the forward pass `saved` is `None`.
  """

  def __call__(self, per_query: Any, per_key: Any, shared: Any, saved: Any) -> tuple[View, Any]: ...


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def attend(
  arrays: tuple[jax.Array, ...],
  per_query: Any,
  per_key: Any,
  shared: Any,
  kind: type[View],
  select: KeySelector,
  scale: float,
  row_size: int,
) -> Float[Array, "B N H D"]:
  """Computes attention to the keys that `select` chooses, one tile of queries after another.

  Args:
    arrays: The tuple of the queries (B, N, H, D), the keys and the values, (B, M, H, D) each.
    per_query: A tree of arrays (B, H or 1, N, ...), of which `select` gets the rows of a tile.
    per_key: A tree of arrays (B, M), of which `select` gets the row of an example, (M,).
    shared: A tree of arrays that `select` gets whole. None of the three trees has a gradient.
    kind: The class of the views that `select` returns.
    select: The function that selects the keys.
    scale: The factor of the logits.
    row_size: The number of array elements that a query needs in memory, which limits the tile size.

  Returns:
    The output (B, N, H, D) in the dtype of `v`.
  """
  return _forward(arrays, per_query, per_key, shared, kind, select, scale, row_size)[0]


def _forward(arrays, per_query, per_key, shared, kind, select, scale, row_size):
  heads = arrays[0].shape[2]

  def head(rows, tables):
    k, v, per_key = tables
    keys = kind.arrange(k)

    def tile(xs):
      q, per_query = xs
      view, saved = select(per_query, per_key, shared, None)
      logits = _logits(view, q.astype(jnp.float32) * scale, keys)
      out, lse = tiling.softmax_tile(logits, v, view.weigh)
      return out.astype(v.dtype), lse, saved

    return jax.lax.map(tile, rows), None

  q, k, v = map(tiling.heads_first, arrays)
  rows, tables = (q, tiling.fold_heads(per_query, heads)), (k, v, _repeat_heads(per_key, heads))
  (out, lse, saved), _ = _map_heads(head, rows, tables, row_size)
  out = tiling.heads_last(out, heads)
  return out, (arrays, per_query, per_key, shared, out, lse, saved)


def _backward(kind, select, scale, row_size, residuals, d_out):
  arrays, per_query, per_key, shared, out, lse, saved = residuals
  heads = out.shape[2]

  def head(rows, tables):
    k, v, per_key = tables
    keys, values = kind.arrange(k), kind.arrange(v)

    def tile(totals, xs):
      q, d_out, lse, delta, per_query, saved = xs
      view, _ = select(per_query, per_key, shared, saved)
      q, d_out = q.astype(jnp.float32) * scale, d_out.astype(jnp.float32)
      logits, products = _logits(view, q, keys), view.products(d_out, values)
      p, ds = tiling.logit_gradient(logits, products, lse[:, None], delta[:, None])
      totals = view.spread(totals[0], ds, q), view.spread(totals[1], p, d_out)
      return totals, view.weigh(ds, k) * scale

    start = jnp.zeros(keys.shape, jnp.float32), jnp.zeros(values.shape, jnp.float32)
    (dk, dv), dq = jax.lax.scan(tile, start, rows)
    return dq, (kind.arrange(dk), kind.arrange(dv))

  q, k, v, out, d_out = map(tiling.heads_first, (*arrays, out, d_out))
  lse, delta = tiling.backward_statistics(out, lse, d_out, 0.0)
  rows = q, d_out, lse, delta, tiling.fold_heads(per_query, heads), saved
  dq, (dk, dv) = _map_heads(head, rows, (k, v, _repeat_heads(per_key, heads)), row_size)
  gradients = tuple(
    tiling.heads_last(x, heads).astype(like.dtype)
    for x, like in zip((dq, dk, dv), arrays, strict=True)
  )
  return gradients, None, None, None


attend.defvjp(_forward, _backward)


def _logits(view: View, rows: jax.Array, table: jax.Array) -> jax.Array:
  logits = view.products(rows, table)
  return logits if view.visible is None else jnp.where(view.visible, logits, -jnp.inf)


def _map_heads(function, per_query, per_key, row_size: int):
  """Calls a function for every example and head, with queries in tiles that fit the CPU's cache.

  The function takes and returns a tree of arrays for queries, (tiles, c, ...), and one for keys,
  (M, ...). A query needs `row_size` array elements in memory.
  """
  total, n = jax.tree.leaves(per_query)[0].shape[:2]
  tiles = math.ceil(n / tiling.tile_rows(tiling.step_elements(), row_size))
  size = math.ceil(n / tiles)
  group = tiling.largest_divisor(total, tiling.step_elements() / (size * row_size))
  arrays = jax.tree.map(lambda x: tiling.split_rows(x, tiles, size), per_query), per_key
  rows, keys = tiling.map_groups(lambda x: jax.vmap(function)(*x), arrays, group)
  return jax.tree.map(lambda x: tiling.join_rows(x, n), rows), keys


def _repeat_heads(tree: Any, heads: int) -> Any:
  """Repeats arrays for every head: (B, M) -> (B·H, M)."""
  return jax.tree.map(lambda x: jnp.repeat(x, heads, axis=0), tree)
