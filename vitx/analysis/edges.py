"""The edges of an attention pattern or matrix as a sparse matrix, and distances over them.

Row q of the sparse matrix (N, N) has an entry for each key that query q reads. The entry is the
weight of the edge, or one. The keys of a row are in ascending order.
"""

import itertools

import numpy as np
import scipy.sparse

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Pattern
from vitx.ops.sparse.block_mask import BlockMask

AT_ONCE = 2**22  # The most entries of a temporary array.
BLOCK = 64  # The number of tokens in a tile of a pattern.


def from_matrix(matrix: np.ndarray, threshold: float = 0.0) -> scipy.sparse.csr_array:
  """Returns the entries of an attention matrix (N, N) above `threshold`, as a sparse matrix."""
  places = np.nonzero(matrix > threshold)
  return scipy.sparse.csr_array((matrix[places].astype(np.float64), places), shape=matrix.shape)


def from_pattern(pattern: Pattern, layout: TokenLayout, head: int = 0) -> scipy.sparse.csr_array:
  """Returns the edges of one head of a pattern, as a sparse matrix (N, N).

  The edges are found tile by tile, so memory grows with the number of edges and not with N².
  """
  mask = BlockMask.from_pattern(pattern, layout, BLOCK, head + 1)
  before = (mask.heads - 1) * mask.rows  # The number of query blocks of all earlier heads.
  first = np.searchsorted(mask.queries, before)
  query, N = mask.queries[first:] - before, layout.length
  key, table = mask.keys[first:], mask.table[first:]
  places = [np.zeros((2, 0), np.int64)]
  step = max(1, AT_ONCE // BLOCK**2)
  for start in range(0, key.size, step):
    part = slice(start, start + step)
    tile, i, j = np.nonzero(mask.tables[table[part]])
    indices = np.stack([query[part][tile] * BLOCK + i, key[part][tile] * BLOCK + j])
    places.append(indices[:, (indices < N).all(axis=0)])
  queries, keys = np.concatenate(places, axis=1)
  return scipy.sparse.csr_array((np.ones(keys.size), (queries, keys)), shape=(N, N))


def distances(edges: scipy.sparse.csr_array, sources: np.ndarray) -> np.ndarray:
  """Counts the pairs (source, token) by the length of the shortest path from source to token.

  A path goes from a query to one of its keys at each step, against the flow of information.

  Args:
    edges: The edges, (N, N).
    sources: The source tokens, distinct indices (S,).

  Returns:
    The counts, int64 (longest + 1,). Entry d is the number of pairs at distance d; entry 0 is S.
  """
  incoming = edges.T.tocsr()
  words = max(1, AT_ONCE // max(1, edges.nnz))
  parts = np.split(sources, range(64 * words, sources.size, 64 * words))
  counts = [_count_by_distance(incoming, part) for part in parts]
  return np.array([sum(pairs) for pairs in itertools.zip_longest(*counts, fillvalue=0)], np.int64)


def _count_by_distance(incoming: scipy.sparse.csr_array, sources: np.ndarray) -> list[int]:
  """Searches breadth-first from all sources at once, with one bit for each pair."""
  slot = np.arange(sources.size)
  reached = np.zeros((incoming.shape[0], -(-sources.size // 64)), np.uint64)
  reached[sources, slot // 64] = np.uint64(1) << (slot % 64).astype(np.uint64)
  tokens = np.flatnonzero(np.diff(incoming.indptr))  # `reduceat` needs nonempty segments.
  starts, counts = incoming.indptr[tokens], [sources.size]
  while True:
    # A token is reached by all sources that reach a query with an edge to it.
    reached[tokens] |= np.bitwise_or.reduceat(reached[incoming.indices], starts, axis=0)
    new = int(np.bitwise_count(reached).sum(dtype=np.int64)) - sum(counts)
    if not new:
      return counts
    counts.append(new)
