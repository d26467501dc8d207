"""Softmax attention in which every query keeps keys of its own (Sparsifiner: Wei et al. 2023).

The keys kept come as indices and are known only when it runs. Three paths give the same:
`softmax.masked_attention` under `kept_mask`; "gathered", which reads the kept keys one by one; and
"chunked", which forms the logits of a few queries against all keys and hides what is not kept. The
last two never hold an N x N array: they work on tiles of queries that fit the cache, and recompute
them backward.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp

from vitx.ops.kernels import tiling

METHODS = ("auto", "gathered", "chunked")
GATHER_SHARE = 10  # see `fastest`


def kept_mask(indices: jax.Array, valid: jax.Array | None, keys: int) -> jax.Array:
  """Returns the kept keys as a mask; made from indices, so ties of scores admit no further key.

  Args:
    indices: int (..., K), in 0 ... M-1 where valid.
    valid: bool (..., K), False where an index only fills the array; None if all are valid.
    keys: M.

  Returns:
    bool (..., M).
  """
  chosen = indices if valid is None else jnp.where(valid, indices, keys)
  rows = chosen.reshape(-1, chosen.shape[-1])
  mask = jnp.zeros((len(rows), keys), bool)
  mask = mask.at[jnp.arange(len(rows))[:, None], rows].set(True, mode="drop")
  return mask.reshape(*indices.shape[:-1], keys)


def fastest(keys: int, kept: int) -> str:
  """Returns the method that "auto" means: "gathered" up to a tenth of the keys, else "chunked".

  Gathering moves K·D numbers for a query where "chunked" multiplies with M·D; a product does about
  ten in the time of one. Measured forward and backward on two CPU cores in float32, the time of
  "chunked" over that of "gathered": at 197 tokens 1.6, 1.1, 0.8 for K/M of 5, 10, 15 %; at 1025
  tokens 2.0, 1.5, 1.1, 0.7 and at 4096 tokens 4.7, 2.0, 1.4, 1.2 for 3, 6, 9, 12 %.
  """
  return "gathered" if kept * GATHER_SHARE <= keys else "chunked"


def kept_keys_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  indices: jax.Array,
  valid: jax.Array | None = None,
  *,
  scale: float | None = None,
  method: str = "auto",
) -> jax.Array:
  """Computes softmax(q kᵀ · scale) v over the keys that each query keeps.

  Args:
    q: (B, N, H, D).
    k, v: (B, M, H, D).
    indices: int (B, H or 1, N, K), the kept keys of each query, none twice.
    valid: bool (B, H or 1, N, K), False where an index only fills the array; None if all are
      valid.
    scale: of the logits; None for 1 / sqrt(D).
    method: "gathered", "chunked", or "auto", the faster; no part of the result.

  Returns:
    out (B, N, H, D) in the dtype of `v`. A query that keeps nothing has out 0 and no gradient, as
    has a key that nobody keeps.

  Raises:
    ValueError: unknown method, or indices of another shape.
  """
  batch, n, heads, dim = q.shape
  if method not in METHODS:
    raise ValueError(f"method={method!r}; valid: {', '.join(METHODS)}")
  if indices.shape[:3] not in ((batch, heads, n), (batch, 1, n)):
    raise ValueError(
      f"indices {indices.shape} of kept keys for queries {q.shape}: make them"
      f" ({batch}, {heads} or 1, {n}, K)"
    )
  scale = 1 / math.sqrt(dim) if scale is None else scale
  if method == "auto":
    method = fastest(k.shape[1], indices.shape[-1])
  return _attend(q, k, v, indices, valid, scale, method == "gathered")


@dataclasses.dataclass(frozen=True)
class _Gathered:
  """Some queries of one head and the keys they keep, read one by one: logits are (c, K)."""

  indices: jax.Array  # (c, K)
  seen: jax.Array | None  # (c, K)

  def products(self, rows: jax.Array, table: jax.Array) -> jax.Array:
    return jnp.einsum("cd,ckd->ck", rows, self._read(table))

  def weigh(self, weights: jax.Array, table: jax.Array) -> jax.Array:
    return jnp.einsum("ck,ckd->cd", weights, self._read(table))

  def spread(self, total: jax.Array, weights: jax.Array, rows: jax.Array) -> jax.Array:
    added = weights[:, :, None] * rows[:, None]
    return total.at[self.indices].add(added, mode="promise_in_bounds")

  def _read(self, table: jax.Array) -> jax.Array:
    return table.at[self.indices].get(mode="promise_in_bounds").astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class _Chunked:
  """Some queries of one head against all keys, most of them hidden: logits are (c, M)."""

  seen: jax.Array  # (c, M)

  def products(self, rows: jax.Array, table: jax.Array) -> jax.Array:
    return tiling.product_transposed(rows, table)

  def weigh(self, weights: jax.Array, table: jax.Array) -> jax.Array:
    return tiling.product(weights, table)

  def spread(self, total: jax.Array, weights: jax.Array, rows: jax.Array) -> jax.Array:
    return total + tiling.product(weights.T, rows)


def _kept(indices, valid, keys: int, gathered: bool) -> _Gathered | _Chunked:
  if not gathered:
    return _Chunked(kept_mask(indices, valid, keys))
  return _Gathered(indices if valid is None else jnp.where(valid, indices, 0), valid)


def _logits(kept: _Gathered | _Chunked, rows: jax.Array, table: jax.Array) -> jax.Array:
  logits = kept.products(rows, table)
  return logits if kept.seen is None else jnp.where(kept.seen, logits, -jnp.inf)


def _over_heads(function, per_query, per_key, wide: int):
  """Calls `function` for every example and head, whose queries come in tiles that fit the cache.

  Args:
    function: (queries' arrays (tiles, c, ...), keys' arrays (M, D)) -> (arrays like the first,
      arrays like the second).
    per_query: tree of (Z, N, ...).
    per_key: tree of (Z, M, D).
    wide: numbers that a step holds for a query.
  """
  total, n = jax.tree.leaves(per_query)[0].shape[:2]
  tiles = math.ceil(n / max(1, tiling.step_elements() // wide))
  size = math.ceil(n / tiles)
  group = tiling.largest_divisor(total, tiling.step_elements() / (size * wide))
  arrays = jax.tree.map(lambda x: tiling.split_rows(x, tiles, size), per_query), per_key
  rows, keys = tiling.map_groups(lambda x: jax.vmap(function)(*x), arrays, group)
  return jax.tree.map(lambda x: tiling.join_rows(x, n), rows), keys


def _flat(x: jax.Array, heads: int) -> jax.Array:
  """Repeats for every head and flattens: (B, H or 1, N, K) -> (B·H, N, K)."""
  return jnp.broadcast_to(x, (x.shape[0], heads, *x.shape[2:])).reshape(-1, *x.shape[2:])


def _wide(k: jax.Array, indices: jax.Array, gathered: bool) -> int:
  return indices.shape[-1] * k.shape[-1] if gathered else k.shape[1]


def _forward(q, k, v, indices, valid, scale: float, gathered: bool):
  heads, keys = q.shape[2], k.shape[1]

  def head(rows, tables):
    k, v = tables

    def tile(xs):
      q, indices, valid = xs
      kept = _kept(indices, valid, keys, gathered)
      logits = _logits(kept, q.astype(jnp.float32) * scale, k)
      out, lse = tiling.softmax_tile(logits, v, kept.weigh)
      return out.astype(v.dtype), lse

    return jax.lax.map(tile, rows), None

  q, k, v = map(tiling.heads_first, (q, k, v))
  kept = jax.tree.map(lambda x: _flat(x, heads), (indices, valid))
  (out, lse), _ = _over_heads(head, (q, *kept), (k, v), _wide(k, indices, gathered))
  return tiling.heads_last(out, heads), lse


def _backward(scale: float, gathered: bool, saved, d_out):
  q, k, v, indices, valid, out, lse = saved
  heads, keys = q.shape[2], k.shape[1]

  def head(rows, tables):
    k, v = tables

    def tile(totals, xs):
      q, d_out, lse, delta, indices, valid = xs
      kept = _kept(indices, valid, keys, gathered)
      q, d_out = q.astype(jnp.float32) * scale, d_out.astype(jnp.float32)
      logits, products = _logits(kept, q, k), kept.products(d_out, v)
      p, ds = tiling.logit_gradient(logits, products, lse[:, None], delta[:, None])
      totals = kept.spread(totals[0], ds, q), kept.spread(totals[1], p, d_out)
      return totals, kept.weigh(ds, k) * scale

    start = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    totals, dq = jax.lax.scan(tile, start, rows)
    return dq, totals

  dtypes = q.dtype, k.dtype, v.dtype
  q, k, v, out, d_out = map(tiling.heads_first, (q, k, v, out, d_out))
  lse, delta = tiling.backward_statistics(out, lse, d_out, 0.0)
  kept = jax.tree.map(lambda x: _flat(x, heads), (indices, valid))
  dq, (dk, dv) = _over_heads(
    head, (q, d_out, lse, delta, *kept), (k, v), _wide(k, indices, gathered)
  )
  grads = (tiling.heads_last(x, heads).astype(t) for x, t in zip((dq, dk, dv), dtypes, strict=True))
  return *grads, None, None


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(q, k, v, indices, valid, scale: float, gathered: bool):
  return _forward(q, k, v, indices, valid, scale, gathered)[0]


def _attend_forward(q, k, v, indices, valid, scale, gathered):
  out, lse = _forward(q, k, v, indices, valid, scale, gathered)
  return out, (q, k, v, indices, valid, out, lse)


_attend.defvjp(_attend_forward, _backward)
