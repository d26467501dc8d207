"""Dense softmax attention whose memory is linear in N, as in FlashAttention.

The N x N matrix is computed in tiles, one after another, and the backward pass computes the tiles
again instead of storing them (Dao et al. 2022, https://arxiv.org/abs/2205.14135). A tile of the
forward pass has some queries and all keys, so that no running maximum is needed. A tile of the
backward pass has some keys and all queries: it completes the gradients of its keys and values, and
only the gradient of the queries is a sum over tiles.
"""

import itertools
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vitx.ops.kernels import tiling
from vitx.ops.kernels.tiling import fold_heads, heads_first, heads_last, map_groups, product
from vitx.ops.shapes import Array, Bool, Float

_MIN_ROWS = 128  # rows of a tile; with fewer, its products do not keep the matrix units busy
_STEPS = 2  # tiles may be this many times as large as in other kernels: fewer, larger products
_BANDS = 4  # bands of a causal matrix; each computes a rectangle around its part of the triangle


def flash_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B M H D"],
  v: Float[Array, "B M H E"],
  *,
  key_mask: Bool[Array, "B M ..."] | None = None,
  scale: float | None = None,
  causal: bool = False,
  steps: tuple[int, int] = (1, 1),
  self_edge: bool = True,
) -> tuple[Float[Array, "B N H E"], Float[Array, "B H N"]]:
  """Computes softmax(q kᵀ · scale) v without storing the matrix of N x M logits.

  A causal mask may consist of blocks: `steps` = (a, b) means that query i sees key j if
  j // b <= i // a. The default (1, 1) is the ordinary causal mask.

  Args:
    q: The queries, (B, N, H, D).
    k: The keys, (B, M, H, D).
    v: The values, (B, M, H, E).
    key_mask: A boolean mask (B, M) or (B, M, H), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    causal: Whether query i sees keys 0 … i only, or the keys that `steps` allows.
    steps: The numbers (a, b) of queries and of keys in a block of the causal mask; ceil(N / a) must
      be ceil(M / b).
    self_edge: Whether query i sees key i. False requires N = M and steps (1, 1).

  Returns:
    The output (B, N, H, E) in the dtype of `v`, and the log-sum-exp of each query's logits,
    (B, H, N) float32, with which partial attentions can be merged. Both are differentiable. A query
    that sees no key has output 0, log-sum-exp -inf and a gradient of 0.
  """
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  bias = None
  if key_mask is not None:
    key_mask = key_mask[:, :, None] if key_mask.ndim == 2 else key_mask
    bias = jnp.where(jnp.swapaxes(key_mask, 1, 2), 0.0, -jnp.inf).astype(jnp.float32)
  return _flash(q, k, v, bias, scale, _Edges(steps if causal else None, self_edge))


class _Edges(NamedTuple):
  """The pairs of queries and keys that may attend.

  Attributes:
    steps: The argument `steps` of `flash_attention`; `None` if the mask is not causal.
    self_edge: Whether query i sees key i.
  """

  steps: tuple[int, int] | None
  self_edge: bool


def _bands(n: int, step: int | None) -> list[tuple[int, int]]:
  """Divides n rows of a causal matrix into bands: pairs (first row, row after the last).

  Every band begins at a multiple of `step`, the number of consecutive rows with equal masks. A
  matrix that is not causal, with `step` None, has one band.
  """
  count = min(_BANDS, max(1, n // max(48, step))) if step else 1
  edges = [n * i // count // (step or 1) * (step or 1) for i in range(count)]
  return list(itertools.pairwise([*edges, n]))


def _tile_rows(batch: int, rows: int, columns: int) -> tuple[int, int, int]:
  """Returns the number of matrices in a step, of rows in a tile, and of tiles.

  The logits of a step fit the cache. There are `batch` matrices of `rows` x `columns`.
  """
  budget = _STEPS * tiling.step_elements()
  tiles = math.ceil(rows / min(rows, tiling.tile_rows(budget, columns, _MIN_ROWS)))
  size = math.ceil(rows / tiles)
  return tiling.largest_divisor(batch, budget / (size * columns)), size, tiles


def _tiles(x: jax.Array, size: int, tiles: int) -> jax.Array:
  """Cuts (g, rows, ...) into (tiles, g, size, ...), with zeros after the last row."""
  return jnp.moveaxis(tiling.split_rows(x, tiles, size), 1, 0)


def _untile(x: jax.Array, rows: int) -> jax.Array:
  """Joins tiles (tiles, g, size, ...) to (g, rows, ...)."""
  return tiling.join_rows(jnp.moveaxis(x, 0, 1), rows)


def _logits(rows, columns, bias, first_row, edges, transposed=False):
  """Returns the logits of tiles, (g, n, m), with -inf for pairs that may not attend.

  There is a tile for each of g pairs of an example and a head. The rows (g, n, D) are queries and
  the columns (g, D, m) are keys, with a bias (g, m); if `transposed`, it is the reverse. The first
  column has index 0.
  """
  logits = product(rows, columns)
  if bias is not None:
    logits = logits + (bias[:, :, None] if transposed else bias[:, None, :])
  i, j = first_row + jnp.arange(rows.shape[1]), jnp.arange(columns.shape[2])
  if edges.steps:
    row_step, column_step = reversed(edges.steps) if transposed else edges.steps
    step = (i // row_step)[:, None]  # multiplying the step avoids a division for every logit
    seen = j >= step * column_step if transposed else j < (step + 1) * column_step
    logits = jnp.where(seen, logits, -jnp.inf)
  return logits if edges.self_edge else jnp.where(i[:, None] == j, -jnp.inf, logits)


def _forward_band(q, k, v, bias, scale, edges, first):
  """Computes the attention of one band of queries (Z, n, D) to the keys that it may see (Z, m, D).

  Z is B·H, and `first` is the index of the first query. Returns the output (Z, n, E), and the
  log-sum-exp of each query's logits, (Z, n).
  """
  group, size, tiles = _tile_rows(q.shape[0], q.shape[1], k.shape[1])

  def instance(args):
    q, k, v, bias = args
    columns = jnp.swapaxes(k, 1, 2).astype(jnp.float32)

    def tile(xs):
      rows, at = xs
      logits = _logits(rows.astype(jnp.float32) * scale, columns, bias, at, edges)
      out, lse = tiling.softmax_tile(logits, v)
      return out.astype(v.dtype), lse

    starts = first + size * jnp.arange(tiles)
    out = jax.lax.map(tile, (_tiles(q, size, tiles), starts))
    return jax.tree.map(lambda x: _untile(x, q.shape[1]), out)

  return map_groups(instance, (q, k, v, bias), group)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _flash(q, k, v, bias, scale, edges):
  heads = q.shape[2]
  q, k, v = map(heads_first, (q, k, v))
  bias = fold_heads(bias, heads)
  query_step, key_step = edges.steps or (None, 1)
  parts = []
  for start, stop in _bands(q.shape[1], query_step):
    seen = slice(0, -(-stop // query_step) * key_step if query_step else None)
    seen_bias = None if bias is None else bias[:, seen]
    rows = q[:, start:stop]
    parts.append(_forward_band(rows, k[:, seen], v[:, seen], seen_bias, scale, edges, start))
  out, lse = (jnp.concatenate(x, axis=1) for x in zip(*parts, strict=True))
  return heads_last(out, heads), lse.reshape(-1, heads, lse.shape[-1])


def _backward_band(arrays, scale, edges):
  """Computes the gradients of one band of keys and values, and its share of the gradient of q.

  The arrays are k, v and bias of the band, and q, d_out, lse and delta (see
  `tiling.backward_statistics`) of the queries that may see it. Returns (dq, dk, dv).
  """
  k, q = arrays[0], arrays[3]  # (Z, ·, D)
  group, size, tiles = _tile_rows(k.shape[0], k.shape[1], q.shape[1])

  def instance(args):
    k, v, bias, q, d_out, lse, delta = args
    q = q.astype(jnp.float32) * scale
    columns, d_columns = (jnp.swapaxes(x, 1, 2).astype(jnp.float32) for x in (q, d_out))

    def tile(dq, xs):
      rows, values, bias, at = xs
      logits = _logits(rows, columns, bias, at, edges, transposed=True)
      if size * tiles > k.shape[1]:
        # The zeros behind the last key have the logit 0. If a query's own logits are far below 0,
        # its probabilities there would overflow, and the gradient of q would be 0 * inf.
        real = at + jnp.arange(size) < k.shape[1]
        logits = jnp.where(real[:, None], logits, -jnp.inf)
      p, ds = tiling.logit_gradient(
        logits, product(values, d_columns), lse[:, None], delta[:, None]
      )
      dk, dv = product(ds, q), product(p, d_out)
      # This form transposes the tile's keys, which have few columns, and not the tile.
      dq = dq + product(jnp.swapaxes(rows, 1, 2), ds)
      return dq, (dk.astype(k.dtype), dv.astype(v.dtype))

    xs = jax.tree.map(lambda x: _tiles(x, size, tiles), (k, v, bias))
    start = jnp.zeros_like(jnp.swapaxes(q, 1, 2))
    dq, grads = jax.lax.scan(tile, start, (*xs, size * jnp.arange(tiles)))
    return jnp.swapaxes(dq, 1, 2) * scale, *(_untile(x, k.shape[1]) for x in grads)

  return map_groups(instance, arrays, group)


def _backward(scale, edges, saved, cotangents):
  q, k, v, bias, out, lse = saved
  d_out, d_lse = cotangents
  heads, dtype = q.shape[2], q.dtype
  q, k, v, out, d_out = map(heads_first, (q, k, v, out, d_out))
  lse, d_lse = (x.reshape(-1, x.shape[-1]) for x in (lse, d_lse))
  lse, delta = tiling.backward_statistics(out, lse, d_out, d_lse)
  bias = fold_heads(bias, heads)
  query_step, key_step = edges.steps or (1, None)
  dq, parts = jnp.zeros(q.shape, jnp.float32), []
  for start, stop in _bands(k.shape[1], key_step):
    see = slice(start // key_step * query_step if key_step else 0, None)
    keys = jax.tree.map(lambda x, band=slice(start, stop): x[:, band], (k, v, bias))
    queries = (x[:, see] for x in (q, d_out, lse, delta))
    added, *grads = _backward_band((*keys, *queries), scale, edges)
    dq = dq.at[:, see].add(added) if edges.steps else added
    parts.append(grads)
  dk, dv = (jnp.concatenate(x, axis=1) for x in zip(*parts, strict=True))
  return *(heads_last(x, heads) for x in (dq.astype(dtype), dk, dv)), None


def _forward(q, k, v, bias, scale, edges):
  out, lse = _flash(q, k, v, bias, scale, edges)
  return (out, lse), (q, k, v, bias, out, lse)


_flash.defvjp(_forward, _backward)
