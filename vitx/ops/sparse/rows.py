"""Lists of blocks for loops over arrays, padded to a few different widths.

A row is a block and its list of other blocks. The row of a query block lists the key blocks that it
reads. The row of a key block lists the query blocks that read it. A class consists of rows whose
lists are padded to one width. For G heads with R blocks each, block r of head g has the number
g·R + r. The number G·R is a dead block, which pads lists and contributes nothing.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.shapes import Array, Bool, Int
from vitx.ops.sparse.block_mask import BlockMask

MAX_CLASSES = 3

Indices = np.ndarray | jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
  """A class of n rows: each has a block of its own and a list of W other blocks.

  Attributes:
    blocks: The block that each row belongs to, int32 (n,).
    others: The blocks in each row's list, int32 (n, W), padded with the dead block, which
      contributes nothing.
    table: The index in `BlockMask.tables` of the mask of each pair of blocks, int32 (n, W); `None`
      if all pairs are full.
    is_padded: Whether `others` contains the dead block.
    pairs: The number of each pair of blocks, int32 (n, W). The entries in the lists of all query
      blocks, padding included, are numbered 0 ... P-1, one class after another. In rows of key
      blocks, padding has the number P.
  """

  blocks: Indices
  others: Indices
  table: Indices | None
  is_padded: bool = dataclasses.field(metadata={"static": True})
  pairs: Indices


@dataclasses.dataclass(frozen=True)
class MaskSide:
  """The rows of all query blocks of a mask, or of all its key blocks.

  A row is a block and its list of blocks on the other side of the mask, see `Rows`.

  Attributes:
    classes: The classes of rows.
    position: The index of each block's row, int32 (G·R,), for G heads of R blocks. Rows are counted
      from 0 over all classes, one class after another. A block without a row has the number of rows
      as its index. `None` means that row r belongs to block r, unless `repeats` is set.
    repeats: Whether a block may own several consecutive rows, whose results must be added.
  """

  classes: tuple[Rows, ...]
  position: np.ndarray | None = None
  repeats: bool = False

  @property
  def is_padded(self) -> bool:
    """Returns whether a list is padded, or there is no list at all.

    The dead block, which pads lists and contributes nothing, is then needed.
    """
    return not self.classes or any(rows.is_padded for rows in self.classes)


@functools.lru_cache(maxsize=256)
def sides(mask: BlockMask) -> tuple[MaskSide, MaskSide]:
  """Returns the rows of a mask's query blocks, and the rows of its key blocks.

  The row of a query block lists the key blocks that it reads. The row of a key block lists the
  query blocks that read it.
  """
  rows, columns = _make_side(mask), _make_side(mask.transpose())
  return rows, _add_pairs(columns, rows, mask.heads * mask.rows)


def class_widths(lengths: np.ndarray) -> list[int]:
  """Chooses at most `MAX_CLASSES` widths for the classes, such that lists need the least padding.

  Every list is padded to the smallest width that is no less than its length. The search is dynamic
  programming over the distinct lengths; among equal costs it prefers fewer classes.

  Args:
    lengths: The length of each list, (n,). Empty lists are ignored.

  Returns:
    The widths, ascending.
  """
  distinct, counts = np.unique(lengths[lengths > 0], return_counts=True)
  rows = np.concatenate([[0], np.cumsum(counts)])
  # best[i]: (cost, classes used, widths) of the i shortest lengths.
  best: list[tuple[int, int, list[int]] | None] = [(0, 0, [])] + [None] * distinct.size
  for _ in range(MAX_CLASSES):
    for i in range(distinct.size, 0, -1):
      for j in range(i):
        if (before := best[j]) is not None:
          cost = before[0] + int(rows[i] - rows[j]) * int(distinct[i - 1])
          candidate = (cost, before[1] + 1, [*before[2], int(distinct[i - 1])])
          if candidate[1] <= MAX_CLASSES and (best[i] is None or candidate < best[i]):  # type: ignore[operator]
            best[i] = candidate
  last = best[-1]
  return last[2] if last else []


def _make_side(mask: BlockMask) -> MaskSide:
  lengths = np.diff(mask.offsets)
  count = lengths.size
  head = np.arange(count) // mask.rows
  position = np.full(count, int((lengths > 0).sum()), np.int32)
  classes: list[Rows] = []
  placed, narrower, pair_count = 0, 0, 0
  for width in class_widths(lengths):
    blocks = np.flatnonzero((lengths > narrower) & (lengths <= width)).astype(np.int32)
    slot = mask.offsets[blocks][:, None] + np.arange(width)
    inside = np.arange(width) < lengths[blocks][:, None]
    slot = np.where(inside, slot, 0)
    others = np.where(inside, mask.keys[slot] + (head[blocks] * mask.rows)[:, None], count)
    table = np.where(inside, mask.table[slot], 0).astype(np.int32)
    partial = table if table.any() else None
    pairs = np.arange(others.size, dtype=np.int32).reshape(others.shape) + pair_count
    classes.append(Rows(blocks, others.astype(np.int32), partial, not bool(inside.all()), pairs))
    pair_count += others.size
    position[blocks] = placed + np.arange(blocks.size)
    placed, narrower = placed + blocks.size, width
  in_order = np.array_equal(position, np.arange(count)) and placed == count
  return MaskSide(tuple(classes), None if in_order else position)


def _add_pairs(columns: MaskSide, rows: MaskSide, dead: int) -> MaskSide:
  """Returns the rows of key blocks with `Rows.pairs`: each pair's place in the lists of queries.

  Padding has the next number after the last.
  """

  def numbers(queries: Indices, keys: Indices) -> np.ndarray:
    return np.asarray(queries, np.int64) * (dead + 1) + np.asarray(keys)

  if not rows.classes:
    return columns
  entries = np.concatenate([numbers(r.blocks[:, None], r.others).ravel() for r in rows.classes])
  order = np.argsort(entries)

  def pairs(column: Rows) -> np.ndarray:
    ranks = np.searchsorted(entries, numbers(column.others, column.blocks[:, None]), sorter=order)
    places = order[np.minimum(ranks, entries.size - 1)]
    return np.where(np.asarray(column.others) == dead, entries.size, places).astype(np.int32)

  classes = tuple(dataclasses.replace(column, pairs=pairs(column)) for column in columns.classes)
  return dataclasses.replace(columns, classes=classes)


def drawn_sides(
  indices: Int[Array, "G R K"], valid: Bool[Array, "G R K"]
) -> tuple[MaskSide, MaskSide]:
  """Returns the rows of query blocks and of key blocks, for lists that are known only at run time.

  The row of a query block lists the key blocks that it reads. The row of a key block lists query
  blocks that read it.

  Args:
    indices: The key blocks that each query block reads, int (G, R, K).
    valid: A mask (G, R, K), False for padding.
  """
  G, R, K = indices.shape
  others = indices + R * jnp.arange(G, dtype=indices.dtype)[:, None, None]
  others = jnp.where(valid, others, G * R).reshape(G * R, K).astype(jnp.int32)
  pairs = jnp.arange(others.size, dtype=jnp.int32).reshape(others.shape)
  rows = Rows(jnp.arange(G * R, dtype=jnp.int32), others, None, True, pairs)
  return MaskSide((rows,)), MaskSide((_transpose_drawn(others),), repeats=True)


def _transpose_drawn(others: jax.Array) -> Rows:
  """Returns the rows of key blocks, with lists of ceil(K / 2) query blocks.

  The number of query blocks that read a key block is not known before run time, so a key block has
  as many rows as it needs. Unused rows belong to the dead block.
  """
  count, K = others.shape
  width = math.ceil(K / 2)
  keys = others.reshape(-1)
  order = jnp.argsort(keys, stable=True)
  start = jnp.searchsorted(keys[order], jnp.arange(count + 1))  # each key block's first pair
  end = jnp.cumsum(-(-jnp.diff(start) // width))  # the end of each key block's rows
  row = jnp.arange(count + count * K // width)
  block = jnp.searchsorted(end, row, side="right")
  first = jnp.concatenate([jnp.zeros(1, end.dtype), end])[block]
  pair = (start[block] + (row - first) * width)[:, None] + jnp.arange(width)
  inside = (block < count)[:, None] & (pair < start[jnp.minimum(block, count - 1) + 1][:, None])
  pairs = jnp.where(inside, order[jnp.minimum(pair, count * K - 1)], count * K).astype(jnp.int32)
  return Rows(block.astype(jnp.int32), pairs // K, None, True, pairs)
