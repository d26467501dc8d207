"""The edges of a pattern or of an attention matrix as neighbor lists, and distances over them."""

import dataclasses

import numpy as np

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Pattern
from vitx.ops.sparse.block_mask import BlockMask

AT_ONCE = 2**22  # The most entries of a temporary array.


@dataclasses.dataclass(frozen=True)
class Edges:
  """A directed graph: query q reads keys `keys[starts[q] : starts[q + 1]]`, ascending.

  Attributes:
    starts: The index of each query's first key, int64 (N + 1,).
    keys: The keys, int32 (edges,).
    weights: The weights, float64 (edges,), or `None` if all edges weigh equally.
  """

  starts: np.ndarray
  keys: np.ndarray
  weights: np.ndarray | None = None

  @property
  def length(self) -> int:
    """The number of tokens, N."""
    return self.starts.size - 1

  @property
  def queries(self) -> np.ndarray:
    """The query of each edge, int32 (edges,)."""
    return np.repeat(np.arange(self.length, dtype=np.int32), np.diff(self.starts))

  def reversed(self) -> "Edges":
    """Returns the edges with reversed direction, from key to query."""
    return from_pairs(self.keys, self.queries, self.length)

  def undirected(self) -> "Edges":
    """Returns both directions of every edge, without repeats and self-loops."""
    q, k = self.queries.astype(np.int64), self.keys.astype(np.int64)
    apart = q != k
    q, k = q[apart], k[apart]
    pairs = np.unique(np.concatenate([q * self.length + k, k * self.length + q]))
    return _from_codes(pairs, self.length)

  def dense(self) -> np.ndarray:
    """Returns the adjacency matrix, float32 (N, N), 1 where there is an edge."""
    result = np.zeros((self.length, self.length), np.float32)
    result[self.queries, self.keys] = 1
    return result


def from_pairs(queries: np.ndarray, keys: np.ndarray, length: int) -> Edges:
  """Builds the neighbor lists from distinct pairs in any order."""
  return _from_codes(np.sort(queries.astype(np.int64) * length + keys), length)


def _from_codes(codes: np.ndarray, length: int) -> Edges:
  """Builds the neighbor lists from the ascending codes q N + k of all edges."""
  queries, keys = np.divmod(codes, max(length, 1))
  starts = np.concatenate([[0], np.cumsum(np.bincount(queries, minlength=length))])
  return Edges(starts.astype(np.int64), keys.astype(np.int32))


def from_matrix(matrix: np.ndarray, threshold: float = 0.0) -> Edges:
  """Returns the entries of an attention matrix (N, N) above `threshold`, with their weights.

  Raises:
    ConfigError: The matrix is not square.
  """
  matrix = np.asarray(matrix)
  if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
    raise ConfigError(f"an attention matrix must be (N, N), not {matrix.shape}: pass one head")
  queries, keys = np.nonzero(matrix > threshold)
  weights = None if matrix.dtype == bool else matrix[queries, keys].astype(np.float64)
  edges = from_pairs(queries, keys, matrix.shape[0])
  return dataclasses.replace(edges, weights=weights)


def from_pattern(pattern: Pattern, layout: TokenLayout, head: int = 0, block: int = 64) -> Edges:
  """Returns one head's edges, found tile by tile: memory grows with their number, not with N²."""
  mask = BlockMask.from_pattern(pattern, layout, block, head + 1)
  rows = slice(
    *np.searchsorted(mask.queries, [(mask.heads - 1) * mask.rows, mask.heads * mask.rows])
  )
  query = mask.queries[rows] - (mask.heads - 1) * mask.rows
  key, table, N = mask.keys[rows], mask.table[rows], layout.length
  queries, keys = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
  step = max(1, AT_ONCE // block**2)
  for start in range(0, key.size, step):
    part = slice(start, start + step)
    tile, i, j = np.nonzero(mask.tables[table[part]])
    q, k = query[part][tile] * block + i, key[part][tile] * block + j
    inside = (q < N) & (k < N)
    queries.append(q[inside])
    keys.append(k[inside])
  return from_pairs(np.concatenate(queries), np.concatenate(keys), N)


def distances(edges: Edges, sources: np.ndarray) -> np.ndarray:
  """Counts the ordered pairs (source, token) by the length of the shortest path between them.

  This is a breadth-first search from all sources at once, with one bit per source and token.

  Args:
    edges: The edges. Information flows from key to query, but a path starts at the source as a
      query and follows its edges.
    sources: The source tokens, distinct indices (S,).

  Returns:
    The counts, int64 (longest + 1,): entry d is the number of pairs at distance d; entry 0 is S.
  """
  incoming = edges.reversed()
  S, N = sources.size, edges.length
  words = -(-S // 64)
  reached = np.zeros((N, words), np.uint64)
  slot = np.arange(S)
  reached[sources, slot // 64] = np.uint64(1) << (slot % 64).astype(np.uint64)
  counts, total = [S], S
  while True:
    reached = _spread(reached, incoming)
    now = int(np.bitwise_count(reached).sum(dtype=np.int64))
    if now == total:
      return np.array(counts, np.int64)
    counts.append(now - total)
    total = now


def _spread(reached: np.ndarray, incoming: Edges) -> np.ndarray:
  """Takes one step: a token is reached by all sources that reach a query with an edge to it."""
  result, words = reached.copy(), reached.shape[1]
  degree = np.diff(incoming.starts)
  fed = np.flatnonzero(degree)  # `reduceat` cannot handle an empty run.
  # A token may have up to N edges, so chunks are cut by edges and not by tokens.
  ends = np.searchsorted(
    np.cumsum(degree[fed]) * words, np.arange(AT_ONCE, degree.sum() * words + AT_ONCE, AT_ONCE)
  )
  begin = 0
  for end in np.unique(np.append(ends + 1, fed.size)):
    tokens = fed[begin : min(int(end), fed.size)]
    if tokens.size == 0:
      continue
    first, last = incoming.starts[tokens[0]], incoming.starts[tokens[-1] + 1]
    gathered = reached[incoming.keys[first:last]]
    result[tokens] |= np.bitwise_or.reduceat(gathered, incoming.starts[tokens] - first, axis=0)
    begin = int(end)
  return result
