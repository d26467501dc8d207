"""The lists of blocks that the kernels of `triton_kernels` read."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.sparse.block_mask import BlockMask


class Lists(NamedTuple):
  """The lists of blocks that a kernel reads, one list for each group of rows.

  The module `triton_kernels` describes the arrays in detail.

  Attributes:
    order: The groups of rows, longest list first.
    bounds: The start and the ends of each group's list.
    others: The blocks of all lists.
    numbers: The index in `tables` of the mask of each entry of `others`.
    tables: The masks in bits.
  """

  order: Any
  bounds: Any
  others: Any
  numbers: Any
  tables: Any


def list_rows(mask, drawn, block: int, most: int, transposed: bool) -> tuple[Lists, int, int, int]:
  """Groups rows of up to `most` tokens, and lists the blocks of columns that each group reads.

  Rows are queries and columns keys, or, if `transposed`, the reverse. Returns the lists, the number
  G of heads that have their own, the number R of groups of a head, and the tokens in a group.
  """
  if mask is None:
    heads, count, _ = drawn[0].shape
    return list_drawn(drawn[0], drawn[1], transposed), heads, count, block
  blocks = max(1, most // block)
  lists = list_blocks(mask, blocks, transposed)
  return lists, mask.heads, -(-mask.rows // blocks), blocks * block


@functools.lru_cache(maxsize=256)
def list_blocks(mask: BlockMask, blocks: int, transposed: bool) -> Lists:
  """Returns the lists of a mask for groups of rows, of `blocks` blocks each.

  Args:
    mask: The static edges.
    blocks: The number of blocks in a group of rows.
    transposed: Whether the lists are those of the key blocks, not of the query blocks.
  """
  mask = mask.transpose() if transposed else mask  # here, so that it is cached with the lists
  groups = -(-mask.rows // blocks)
  head, row = np.divmod(mask.queries.astype(np.int64), mask.rows)
  pairs, place = np.unique(
    (head * groups + row // blocks) * mask.rows + mask.keys, return_inverse=True
  )
  group, others = np.divmod(pairs, mask.rows)
  # The table of each block of a group: -1 if it has no edges, 0 if it has all or is out of range.
  parts = np.full((pairs.size, blocks), -1, np.int32)
  parts[(group % groups)[:, None] * blocks + np.arange(blocks) >= mask.rows] = 0
  parts[place, row % blocks] = mask.table
  kinds, numbers = np.unique(parts, axis=0, return_inverse=True)
  masked = np.any(kinds != 0, axis=1)[numbers.reshape(-1)]
  order = np.lexsort((others, ~masked, group))
  ends = np.cumsum(np.bincount(group, minlength=mask.heads * groups))
  starts = np.concatenate([[0], ends[:-1]])
  middles = starts + np.bincount(group[masked], minlength=ends.size)
  bounds = np.stack([starts, middles, ends], axis=1)
  longest_first = np.argsort(starts - ends, kind="stable")
  tables = _pack(mask)[kinds] if masked.any() else np.zeros(0)
  arrays = (longest_first, bounds, others[order], numbers.reshape(-1)[order], tables)
  return Lists(*(x.astype(np.int32) for x in arrays))


def _pack(mask: BlockMask) -> np.ndarray:
  """Returns the tables of a mask as bits, int32 (T + 1, b, words). The last table has no edges."""
  tables = np.concatenate([mask.tables, np.zeros_like(mask.tables[:1])])
  tables = np.pad(tables, [(0, 0), (0, 0), (0, -mask.block % 32)])
  return np.packbits(tables, axis=2, bitorder="little").view("<i4")


def list_drawn(indices: jax.Array, valid: jax.Array, transposed: bool) -> Lists:
  """Returns the lists for blocks that are known only at run time, which have no masks.

  Args:
    indices: The key blocks that each query block reads, int (G, R, K).
    valid: A mask (G, R, K), False where an index only fills the array.
    transposed: Whether the lists are those of the key blocks, not of the query blocks.
  """
  G, R, _ = indices.shape
  query = jnp.broadcast_to(jnp.arange(G * R).reshape(G, R, 1), indices.shape)
  key = indices + R * jnp.arange(G)[:, None, None]
  row, others = (key, query) if transposed else (query, key)
  row = jnp.where(valid, row, G * R).reshape(-1)  # invalid entries come last
  place = jnp.argsort(row, stable=True)
  first = jnp.searchsorted(row[place], jnp.arange(G * R + 1))
  bounds = jnp.stack([first[:-1], first[:-1], first[1:]], axis=1)
  order, none = jnp.argsort(-jnp.diff(first), stable=True), np.zeros(0, np.int32)
  arrays = (order, bounds, others.reshape(-1)[place] % R, none, none)
  return Lists(*(x.astype(jnp.int32) for x in arrays))
