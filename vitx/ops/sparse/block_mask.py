"""The blocks of the attention matrix that contain edges, as block-sparse kernels need them."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Pattern

KEY_BLOCK = 32  # tokens in a block of the masks by which `remember` compares patterns
TILES_AT_ONCE = 2**20  # elements that one call of `allows` evaluates: they fit the CPU's cache


@dataclasses.dataclass(frozen=True, eq=False)
class BlockMask:
  """The edges of a pattern in blocks of b x b, as read-only NumPy arrays; hashable by content.

  A block is stored if it contains an edge. A head has R = ceil(N / b) query blocks, and row g*R + r
  lists the stored blocks of query block r of head g.

  Attributes:
    length: The number N of queries and of keys.
    block: The number b of tokens in a block.
    heads: The number G of heads with edges of their own, 1 if all heads have equal edges.
    offsets: The start of each row, int32 (G*R + 1,): row i has the stored blocks
      `offsets[i] ... offsets[i + 1] - 1`.
    keys: The key block of each of the E stored blocks, int32 (E,), ascending within a row.
    table: The index of each stored block's mask in `tables`, int32 (E,); 0 if every element inside
      N x N is allowed.
    tables: The masks by (query, key) inside a block, bool (T, b, b), without repeats. `tables[0]`
      is all True; the others are False outside N x N.
  """

  length: int
  block: int
  heads: int
  offsets: np.ndarray
  keys: np.ndarray
  table: np.ndarray
  tables: np.ndarray

  def __post_init__(self):
    for name in ("offsets", "keys", "table", "tables"):
      getattr(self, name).flags.writeable = False

  @property
  def rows(self) -> int:
    """Returns R, the number of query blocks (and of key blocks)."""
    return -(-self.length // self.block)

  @functools.cached_property
  def queries(self) -> np.ndarray:
    """Returns the row of each of the E stored blocks, int32 (E,).

    Row g*R + r is that of query block r of head g; each head has R query blocks.
    """
    counts = np.diff(self.offsets)
    return np.repeat(np.arange(counts.size, dtype=np.int32), counts)

  @staticmethod
  def from_pattern(
    pattern: Pattern, layout: TokenLayout, block: int, num_heads: int
  ) -> "BlockMask":
    """Builds the mask of a pattern; evaluates only the key blocks that `Pattern.candidates` names.

    Args:
      pattern: The pattern of one layer.
      layout: The layout of the N tokens.
      block: The number b of tokens in a block.
      num_heads: The number of heads H; G is H, or 1 if the pattern's heads do not differ.
    """
    if block < 1:
      raise ConfigError(f"block={block} must be at least 1.")
    heads = 1 if pattern.head_period == 1 else num_heads
    N, b, R = layout.length, block, -(-layout.length // block)
    numbers: dict[bytes, int] = {}
    tiles = [np.zeros((3, 0), np.int32)]  # the row, the key block and the table of each tile
    for head in range(heads):
      for rows, keys in _batches(pattern, layout, b, head, range(R)):
        whole = np.minimum(N - rows * b, b) * np.minimum(N - keys * b, b)
        table = _number_tiles(_evaluate(pattern, layout, b, rows, keys, head), whole, numbers)
        tiles.append(np.stack([head * R + rows, keys, table]).astype(np.int32)[:, table >= 0])
    rows, keys, table = np.concatenate(tiles, axis=1)
    packed = np.frombuffer(b"".join(numbers), np.uint8).reshape(-1, -(-b * b // 8))
    partial = np.unpackbits(packed, axis=1, count=b * b).astype(bool).reshape(-1, b, b)
    tables = np.concatenate([np.ones((1, b, b), bool), partial])
    return BlockMask(N, b, heads, _offsets(rows, heads * R), keys, table, tables)

  def transpose(self) -> "BlockMask":
    """Returns the mask with queries and keys exchanged.

    Its rows are for key blocks, and its `keys` are the query blocks that read them.
    """
    head, query = np.divmod(self.queries, self.rows)
    row = head * self.rows + self.keys
    order = np.argsort(row, kind="stable")  # within a row the queries stay ascending
    return BlockMask(
      self.length,
      self.block,
      self.heads,
      _offsets(row, self.heads * self.rows),
      query[order].astype(np.int32),
      self.table[order],
      np.ascontiguousarray(self.tables.swapaxes(1, 2)),
    )

  @functools.cached_property
  def digest(self) -> str:
    """Returns a hexadecimal hash of the content that does not depend on the machine."""
    digest = hashlib.sha256(f"{self.length} {self.block} {self.heads}".encode())
    for array in (self.offsets, self.keys, self.table):
      digest.update(array.astype("<i4").tobytes())
    digest.update(np.packbits(self.tables).tobytes())
    return digest.hexdigest()

  def __hash__(self) -> int:
    return int(self.digest[:15], 16)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, BlockMask) and self.digest == other.digest


def count_tiles(pattern: Pattern, layout: TokenLayout, block: int, rows: np.ndarray) -> np.ndarray:
  """Returns the number of key blocks that each of some query blocks reads in head 0, int (n,).

  Args:
    pattern: The pattern of one layer.
    layout: The layout of the N tokens.
    block: The number b of tokens in a block.
    rows: The query blocks, int (n,), ascending.
  """
  counts = np.zeros(-(-layout.length // block), np.int64)
  for queries, keys in _batches(pattern, layout, block, 0, rows):
    tiles = _evaluate(pattern, layout, block, queries, keys, 0)
    counts += np.bincount(queries[tiles.any(axis=(1, 2))], minlength=counts.size)
  return counts[rows]


def _batches(
  pattern: Pattern, layout: TokenLayout, block: int, head: int, rows: Iterable[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields (query blocks, key blocks) of tiles that may contain edges, as many as fit the cache."""
  N, limit = layout.length, max(1, TILES_AT_ONCE // block**2)
  everything = np.arange(-(-N // block))
  queries: list[np.ndarray] = []
  keys: list[np.ndarray] = []
  total = 0
  for r in rows:
    last = min((r + 1) * block, N) - 1
    candidates = pattern.candidates(layout, r * block, last, block, head)
    candidates = everything if candidates is None else candidates
    for start in range(0, candidates.size, limit):
      part = candidates[start : start + limit]
      if total and total + part.size > limit:
        yield np.concatenate(queries), np.concatenate(keys)
        queries, keys, total = [], [], 0
      queries.append(np.full(part.size, r))
      keys.append(part)
      total += part.size
  if total:
    yield np.concatenate(queries), np.concatenate(keys)


def _evaluate(
  pattern: Pattern, layout: TokenLayout, block: int, rows: np.ndarray, keys: np.ndarray, head: int
) -> np.ndarray:
  """Returns the edges in some tiles, bool (tiles, b, b), False outside N x N."""
  N, grain = layout.length, math.gcd(pattern.grain(layout), block)
  places = np.arange(block, dtype=np.int32)
  q = rows[:, None, None].astype(np.int32) * block + places[:, None]
  k = keys[:, None, None].astype(np.int32) * block + places
  ragged = N % block != 0 and bool(rows.max() == N // block or keys.max() == N // block)
  first_q, first_k = q[:, ::grain], k[:, :, ::grain]  # the first token of each grain
  if ragged:
    first_q, first_k = np.minimum(first_q, N - 1), np.minimum(first_k, N - 1)
  allowed = pattern.allows(layout, first_q, first_k, np.int32(head))
  allowed = np.broadcast_to(allowed, (rows.size, block // grain, block // grain))
  if grain > 1:
    allowed = allowed.repeat(grain, axis=1).repeat(grain, axis=2)
  return allowed & (q < N) & (k < N) if ragged else allowed


def _number_tiles(tiles: np.ndarray, whole: np.ndarray, numbers: dict[bytes, int]) -> np.ndarray:
  """Returns the number of each tile's mask in `BlockMask.tables`, 0 if it is full, -1 if empty.

  A full tile has `whole` edges. `numbers`, to which this function adds new ones, has the numbers of
  masks by packed content.
  """
  counts = np.count_nonzero(tiles, axis=(1, 2))
  table = np.where(counts > 0, 0, -1).astype(np.int32)
  partial = np.flatnonzero((counts > 0) & (counts < whole))
  packed = np.packbits(tiles[partial].reshape(partial.size, tiles[0].size), axis=1)
  for i, content in zip(partial, packed, strict=True):
    table[i] = numbers.setdefault(content.tobytes(), len(numbers) + 1)
  return table


def _offsets(rows: np.ndarray, count: int) -> np.ndarray:
  """Returns the place in sorted `rows` at which each row number begins, int32 (count + 1,)."""
  ends = np.cumsum(np.bincount(rows, minlength=count))
  return np.concatenate([[0], ends]).astype(np.int32)


def remember(size: int) -> Callable[[Callable], Callable]:
  """Returns a decorator that caches a function of a pattern by the pattern's edges.

  The function takes a pattern or `None`, a layout, and hashable arguments. The edges of a pattern
  that is not fixed (see `Pattern.is_fixed`) are evaluated at each call, as part of the cache's key.

  Args:
    size: The number of results to keep.
  """

  def decorate(function: Callable) -> Callable:
    @functools.lru_cache(maxsize=size)
    def remembered(edges: str, *arguments: Any) -> Any:
      return function(*arguments)

    @functools.wraps(function)
    def call(pattern: Pattern | None, layout: TokenLayout, *arguments: Any) -> Any:
      edges = ""
      if pattern is not None and not pattern.is_fixed and not pattern.is_drawn:
        edges = BlockMask.from_pattern(pattern, layout, KEY_BLOCK, pattern.head_period).digest
      return remembered(edges, pattern, layout, *arguments)

    return call

  return decorate
