"""Block-sparse attention in plain XLA: blocks are gathered and multiplied, some examples at a time.

The module `rows` explains rows, and classes of rows with equally long lists. Inside a step, arrays
of blocks have the shape (z, G·R + 1, b, ...), for R blocks of b tokens in a head. If each head has
lists of its own (G = H), z counts examples; if all heads share lists (G = 1), z counts pairs of an
example and a head. The logits of c rows with lists of W blocks are (z, c, b, W·b). The last block
is dead, and pads lists: its keys have a bias of -inf and its queries lse = +inf, so that it
contributes exactly zero. If no list is padded, there is no dead block. lse is the log-sum-exp of a
query's logits.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.kernels import tiling
from vitx.ops.kernels.tiling import product, product_transposed
from vitx.ops.shapes import Array, Float
from vitx.ops.sparse.rows import Indices, MaskSide, Rows


class Layout(NamedTuple):
  """The sizes of a mask, and its tables.

  Attributes:
    heads: The number G of heads with lists of their own; 1 if all heads have equal edges.
    rows: The number R of query blocks of a head.
    block: The number b of tokens in a block.
    dead: Whether a dead block follows the G·R blocks.
    tables: The masks of blocks, bool (T, b, b); `None` for blocks known only at run time, which are
      full.
  """

  heads: int
  rows: int
  block: int
  dead: bool
  tables: jax.Array | None = None


class _Blocks(NamedTuple):
  """The arrays of one step, (z, G·R + 1, b, ...) each.

  z counts examples, or pairs of an example and a head. G heads have R blocks of b tokens each, and
  one dead block may follow, which pads lists.

  Attributes:
    q, k, v: The queries, keys and values.
    bias: The bias of the keys: -inf for keys that may not be attended, otherwise 0.
    every_bias: Whether any key outside the dead block has a bias of -inf.
    d_out, lse, delta: The output's cotangent, and the results of `tiling.backward_statistics`;
      `None` in the forward pass.
  """

  q: jax.Array
  k: jax.Array
  v: jax.Array
  bias: jax.Array
  every_bias: bool
  d_out: Any = None
  lse: Any = None
  delta: Any = None


def forward(
  arrays: tuple[jax.Array, ...], rows: MaskSide, layout: Layout, scale: float
) -> tuple[Float[Array, "B N H E"], Float[Array, "B N H"]]:
  """Computes attention along lists of blocks.

  Args:
    arrays: The tuple of q, k, v, (B, N, H, D) each, and a boolean mask (B, N) or (B, N, H), True =
      may be attended, `None` for all.
    rows: The rows of the query blocks.
    layout: The layout of heads and blocks.
    scale: The factor of the logits.

  Returns:
    The output (B, N, H, E) in the dtype of `v`, and the log-sum-exp of each query's logits, float32
    (B, N, H).
  """

  q, k, v, key_mask = arrays

  def part(arrays):
    blocks = _make_blocks(layout, *arrays)

    def step(rows: Rows):
      out, lse = tiling.softmax_tile(
        _logits(blocks, rows, layout, scale), _gather(blocks.v, rows.others)
      )
      return out.astype(v.dtype), lse

    results = _map_rows(step, rows, layout, blocks.q.shape[0], (0.0, -jnp.inf))
    return tuple(_from_blocks(x, layout, arrays[0].shape) for x in results)

  return _map_parts(part, (q, k, v, _broadcast_mask(key_mask, q)), rows, layout)


def backward(
  arrays: tuple[jax.Array, ...], rows: MaskSide, columns: MaskSide, layout: Layout, scale: float
) -> tuple[jax.Array, ...]:
  """Returns the gradients of q, k and v, (B, N, H, D) each.

  Args:
    arrays: The tuple of q, k, v, key_mask, the output's cotangent, and lse and delta from
      `tiling.backward_statistics`, (B, N, ...) each.
    rows: The rows of the query blocks, as in `forward`, for the gradient of q.
    columns: The rows of the key blocks, for the gradients of k and v, which then need no scatter.
    layout: The layout of heads and blocks.
    scale: The factor of the logits.
  """
  q, k, v, key_mask, *rest = arrays

  def part(arrays):
    *inputs, d_out, lse, delta = arrays
    blocks = _make_blocks(layout, *inputs)._replace(
      d_out=_to_blocks(d_out, layout),
      lse=_to_blocks(lse, layout, jnp.inf),
      delta=_to_blocks(delta, layout),
    )
    gradients = _gradients_at_once if _keep_tiles(rows, blocks) else _gradients_in_turn
    return tuple(
      _from_blocks(x, layout, like.shape).astype(like.dtype)
      for x, like in zip(gradients(blocks, rows, columns, layout, scale), inputs[:3], strict=True)
    )

  return _map_parts(part, (q, k, v, _broadcast_mask(key_mask, q), *rest), columns, layout)


def _broadcast_mask(key_mask: jax.Array | None, q: jax.Array) -> jax.Array | None:
  if key_mask is None:
    return None
  return jnp.broadcast_to(key_mask if key_mask.ndim == 3 else key_mask[:, :, None], q.shape[:3])


def _map_parts(part: Callable, arrays, side: MaskSide, layout: Layout):
  """Applies `part` to as many examples as fit one step, or to some heads of one example."""
  batch, _, heads = arrays[0].shape[:3]
  largest = max((rows.others.size for rows in side.classes), default=1)
  per_example = largest * layout.block**2 * heads // layout.heads
  # For each gathered token, a step needs memory for b logits and for the D numbers of its vector.
  fit = tiling.step_elements() / per_example * min(1.0, layout.block / arrays[0].shape[-1])
  if fit >= 1 or layout.heads > 1:
    return tiling.map_groups(part, arrays, tiling.largest_divisor(batch, fit))
  count = tiling.largest_divisor(heads, fit * heads)

  def map_heads(example):
    def cut(first):  # moving the axis of heads to the front would copy all heads
      return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, count, 2), example)

    def step(i, results):
      return jax.tree.map(
        lambda whole, x: jax.lax.dynamic_update_slice_in_dim(whole, x, i * count, 2),
        results,
        part(cut(i * count)),
      )

    like = jax.eval_shape(lambda: part(cut(0)))
    results = jax.tree.map(lambda x: jnp.zeros((*x.shape[:2], heads, *x.shape[3:]), x.dtype), like)
    return jax.lax.fori_loop(0, heads // count, step, results)

  return tiling.map_groups(map_heads, arrays, 1)


def _keep_tiles(rows: MaskSide, blocks: _Blocks) -> bool:
  """Returns whether the backward pass keeps the tiles of all pairs of blocks in memory.

  A pair has two tiles, the probabilities and the gradient of the logits. They are kept if those of
  all pairs fit one step, and if the two tiles have no more elements than the keys of a block.
  """
  z, _, block, dim = blocks.q.shape
  elements = z * block**2 * sum(r.others.size for r in rows.classes)
  return 2 * block <= dim and elements <= tiling.step_elements()


def _gradients_in_turn(blocks: _Blocks, rows, columns, layout: Layout, scale: float):
  """Computes the gradient of q, then those of k and v, each from probabilities of its own."""
  z = blocks.q.shape[0]
  dq = _map_rows(lambda r: _query_step(blocks, r, layout, scale)[:1], rows, layout, z, (0.0,))
  dkv = _map_rows(lambda r: _key_step(blocks, r, layout, scale), columns, layout, z, (0.0, 0.0))
  return *dq, *dkv


def _gradients_at_once(blocks: _Blocks, rows, columns, layout: Layout, scale: float):
  """Computes all gradients from the same probabilities, which saves two of seven products."""
  results = [_query_step(blocks, r, layout, scale) for r in _list_classes(rows, layout)]
  dq = _join_classes([x[:1] for x in results], rows, layout, (0.0,))
  p, ds = (_cut_tiles([x[i] for x in results], layout.block) for i in (1, 2))

  def key_step(column: Rows):
    dk = product(_gather_tiles(ds, column.pairs), _gather(blocks.q, column.others)) * scale
    return dk, product(_gather_tiles(p, column.pairs), _gather(blocks.d_out, column.others))

  return *dq, *_map_rows(key_step, columns, layout, blocks.q.shape[0], (0.0, 0.0))


def _cut_tiles(rows: list[jax.Array], block: int) -> jax.Array:
  """Cuts (z, c, b, W·b) into tiles (z, pairs + 1, b, b) of (key, query); the last one is zero."""
  parts = [
    jnp.moveaxis(x.reshape(*x.shape[:3], -1, block), 2, 4).reshape(x.shape[0], -1, block, block)
    for x in rows
  ]
  return jnp.pad(jnp.concatenate(parts, axis=1), [(0, 0), (0, 1), (0, 0), (0, 0)])


def _query_step(blocks: _Blocks, rows: Rows, layout: Layout, scale: float):
  """Returns the gradient of c query blocks, (z, c, b, D), and their p and ds, (z, c, b, W·b)."""
  logits = _logits(blocks, rows, layout, scale)
  products = product_transposed(blocks.d_out[:, rows.blocks], _gather(blocks.v, rows.others))
  lse, delta = (x[:, rows.blocks][..., None] for x in (blocks.lse, blocks.delta))
  p, ds = tiling.logit_gradient(logits, products, lse, delta)
  return product(ds, _gather(blocks.k, rows.others)) * scale, p, ds


def _key_step(blocks: _Blocks, rows: Rows, layout: Layout, scale: float):
  """Returns the gradients of c key blocks and of their values, (z, c, b, D) each."""
  queries, d_outs = _gather(blocks.q, rows.others), _gather(blocks.d_out, rows.others)
  logits = product_transposed(blocks.k[:, rows.blocks].astype(jnp.float32) * scale, queries)
  if blocks.every_bias:  # padding needs no bias: a dead query's probabilities are zero
    logits = logits + blocks.bias[:, rows.blocks][..., None]
  logits = _mask(logits, rows, None if layout.tables is None else layout.tables.swapaxes(1, 2))
  products = product_transposed(blocks.v[:, rows.blocks], d_outs)
  lse, delta = (_gather(x, rows.others)[:, :, None] for x in (blocks.lse, blocks.delta))
  p, ds = tiling.logit_gradient(logits, products, lse, delta)
  return product(ds, queries) * scale, product(p, d_outs)


def _logits(blocks: _Blocks, rows: Rows, layout: Layout, scale: float) -> jax.Array:
  """Returns the logits (z, c, b, W·b), -inf where a query may not attend a key."""
  queries = blocks.q[:, rows.blocks].astype(jnp.float32) * scale
  logits = product_transposed(queries, _gather(blocks.k, rows.others))
  if blocks.every_bias or rows.is_padded:
    logits = logits + _gather(blocks.bias, rows.others)[:, :, None]
  return _mask(logits, rows, layout.tables)


def _mask(logits: jax.Array, rows: Rows, tables) -> jax.Array:
  if rows.table is None:
    return logits
  allowed = jnp.swapaxes(jnp.asarray(tables)[rows.table], 1, 2)  # (c, b, W, b)
  return jnp.where(allowed.reshape(logits.shape[1:]), logits, -jnp.inf)


def _gather(x: jax.Array, indices: Indices) -> jax.Array:
  """Joins the W blocks in each of c lists: (z, blocks, b, ...), (c, W) -> (z, c, W·b, ...)."""
  gathered = _take(x, indices)
  return gathered.reshape(*gathered.shape[:2], -1, *gathered.shape[4:])


def _take(x: jax.Array, indices: Indices) -> jax.Array:
  return x.at[:, indices].get(mode="promise_in_bounds")


def _gather_tiles(tiles: jax.Array, pairs: Indices) -> jax.Array:
  """Joins the tiles (key, query) of each list: (z, pairs, b, b), (c, W) -> (z, c, b, W·b)."""
  gathered = jnp.swapaxes(_take(tiles, pairs), 2, 3)
  return gathered.reshape(*gathered.shape[:3], -1)


def _make_blocks(layout: Layout, q, k, v, seen: jax.Array | None) -> _Blocks:
  every_bias = seen is not None or q.shape[1] % layout.block != 0
  seen = jnp.ones(q.shape[:3], bool) if seen is None else seen
  bias = _to_blocks(jnp.where(seen, 0.0, -jnp.inf).astype(jnp.float32), layout, -jnp.inf)
  q, k, v = (_to_blocks(x, layout) for x in (q, k, v))
  return _Blocks(q, k, v, bias, every_bias)


def _to_blocks(x: jax.Array, layout: Layout, fill: float = 0) -> jax.Array:
  """Cuts (g, N, H, ...) into (z, G·R + 1, b, ...), padded with `fill` from token N on.

  G heads with lists of their own have R blocks of b tokens each; z = g·H / G.
  """
  G, R, b, dead, _ = layout
  g, n, heads, *rest = x.shape
  free = [(0, 0)] * len(rest)
  x = jnp.pad(jnp.swapaxes(x, 1, 2), [(0, 0), (0, 0), (0, R * b - n), *free], constant_values=fill)
  x = x.reshape(g * heads // G, G * R, b, *rest)
  return jnp.pad(x, [(0, 0), (0, int(dead)), (0, 0), *free], constant_values=fill)


def _from_blocks(x: jax.Array, layout: Layout, shape: tuple[int, ...]) -> jax.Array:
  """Undoes `_to_blocks`: joins (z, G·R, b, ...) to (g, N, H, ...); `shape` begins with g, N, H."""
  g, n, heads = shape[:3]
  x = x.reshape(g, heads, layout.rows * layout.block, *x.shape[3:])
  return jnp.swapaxes(x[:, :, :n], 1, 2)


def _map_rows(step: Callable, side: MaskSide, layout: Layout, z: int, fills: tuple[float, ...]):
  """Runs `step` over all rows of all classes, and returns results in block order, (z, G·R, b, ...).

  A step maps c rows to arrays (z, c, b, ...). Blocks without rows have the values `fills`.
  """
  parts = [_map_class(step, rows, layout, z) for rows in _list_classes(side, layout)]
  return _join_classes(parts, side, layout, fills)


def _list_classes(side: MaskSide, layout: Layout) -> tuple[Rows, ...]:
  """Returns the classes of rows; if there are no edges, one dead row that gives the shapes."""
  dead = np.full((1, 1), layout.heads * layout.rows, np.int32)
  return side.classes or (Rows(dead[0], dead, None, True, np.ones_like(dead)),)


def _join_classes(parts: list[tuple], side: MaskSide, layout: Layout, fills: tuple) -> tuple:
  """Joins the results of classes, each (z, c, b, ...), in block order: (z, G·R, b, ...)."""
  blocks = layout.heads * layout.rows
  joined = [jnp.concatenate(x, axis=1) for x in zip(*parts, strict=True)]
  if side.repeats:
    owners = side.classes[0].blocks
    add = partial(jax.ops.segment_sum, num_segments=blocks, indices_are_sorted=True)
    return tuple(jax.vmap(add, in_axes=(0, None))(x, owners) for x in joined)  # drops the dead rows
  if side.position is None:
    return tuple(joined)
  ordered = []
  for x, fill in zip(joined, fills, strict=True):
    x = jnp.pad(x, [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2), constant_values=fill)
    ordered.append(x.at[:, side.position].get(mode="promise_in_bounds"))
  return tuple(ordered)


def _map_class(step: Callable, rows: Rows, layout: Layout, z: int) -> tuple:
  """Runs one class of n rows in chunks that fit one step; returns arrays (z, n, b, ...)."""
  n, width = rows.others.shape
  steps = math.ceil(z * n * width * layout.block**2 / tiling.step_elements())
  if steps <= 1:
    return step(rows)
  size = math.ceil(n / min(n, steps))
  steps = math.ceil(n / size)

  def chunks(x):  # copies of the last row fill the last chunk; their results are cut off
    pad = [(0, steps * size - n)] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(jnp.asarray(x), pad, mode="edge").reshape(steps, size, *x.shape[1:])

  results = jax.lax.map(step, jax.tree.map(chunks, rows))  # (steps, z, size, b, ...)
  return tuple(tiling.join_rows(jnp.moveaxis(x, 0, 1), n) for x in results)
