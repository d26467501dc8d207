"""Plans the cache of a decoder: which slot each key gets, and which slots each step reads.

A key is needed from its own step to the last query that attends it. Keys whose intervals do not
overlap share a slot, so memory follows the pattern. A window of l keys needs l slots. The pattern
`Fixed` needs slots for the current run and for the summaries of earlier runs.
"""

import dataclasses
import heapq
from collections.abc import Iterator

import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Causal, Pattern
from vitx.ops.sparse.block_mask import remember

BLOCK = 64  # the number of queries for which the pattern is evaluated at once
TABLE_ENTRIES = 1 << 25  # a table is part of the compiled program: 128 MiB at most


@dataclasses.dataclass(frozen=True, eq=False)
class DecodePlan:
  """The slots of a cache, and the slots that each step reads.

  Heads with equal edges form a group. Each group has its own slots, M for every group.

  Attributes:
    layout: The layout of the N tokens.
    groups: The group of each head, int32 (H,).
    heads: One head of each group, int32 (G,).
    slots: The slot of each token's key, int32 (G, N).
    count: The number M of slots of a head.
    table: The slots that each query reads, int32 (N, G, K), -1 for padding; `None` if every query
      reads all slots and the pattern decides at run time which of them count.
    pattern: The edges; `None` for edges to every key up to the query's own.
  """

  layout: TokenLayout
  groups: np.ndarray
  heads: np.ndarray
  slots: np.ndarray
  count: int
  table: np.ndarray | None
  pattern: Pattern | None

  @property
  def in_order(self) -> bool:
    """Returns whether slot i contains the key of token i, for every token."""
    return self.count == self.layout.length and bool(np.all(self.slots == np.arange(self.count)))

  @property
  def keeps_places(self) -> bool:
    """Returns whether a cache must record the token in each slot."""
    return self.table is None and not self.in_order


@remember(256)
def decode_plan(pattern: Pattern | None, layout: TokenLayout, num_heads: int) -> DecodePlan:
  """Returns the plan of the cache for causal attention that is computed token by token.

  Args:
    pattern: The pattern of one layer, whose edges to later tokens are left out; `None` for edges to
      all earlier tokens.
    layout: The layout of the N tokens.
    num_heads: The number of heads H.
  """
  N = layout.length
  if pattern is None:
    numbers = np.arange(N, dtype=np.int32)[None]
    none = np.zeros(num_heads, np.int32)
    return DecodePlan(layout, none, none[:1], numbers, N, None, None)
  pattern = pattern & Causal()
  groups, kinds = _group_heads(pattern, num_heads)
  lives = [_find_last_queries(member, layout, head) for member, head in kinds]
  assigned = [_assign_slots(last) for last, _ in lives]
  slots, count = np.stack([slots for slots, _ in assigned]), max(count for _, count in assigned)
  widest = max(1, max(int(counts.max()) for _, counts in lives))
  table = None
  if 2 * widest <= count and N * len(kinds) * widest <= TABLE_ENTRIES:
    reads = [_reads(*kind, layout, slot, widest) for kind, slot in zip(kinds, slots, strict=True)]
    table = np.stack(reads, axis=1)
  heads = np.array([head for _, head in kinds], np.int32)
  return DecodePlan(layout, groups, heads, slots, count, table, pattern)


def _group_heads(pattern: Pattern, num_heads: int) -> tuple[np.ndarray, list[tuple[Pattern, int]]]:
  """Returns the group of each head, int32 (H,), and a (pattern, head) with the group's edges."""
  members = pattern.by_head()
  groups: list[int] = []
  numbers: dict[tuple[Pattern, int], int] = {}
  kinds: list[tuple[Pattern, int]] = []
  for head in range(num_heads):
    member = members[head % len(members)]
    number = numbers.setdefault((member, head % member.head_period), len(kinds))
    if number == len(kinds):
      kinds.append((member, head))
    groups.append(number)
  return np.array(groups, np.int32), kinds


def _edges(
  pattern: Pattern, layout: TokenLayout, head: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Yields (first query, keys (n,), allowed (b, n)) for one block of queries after another."""
  N = layout.length
  for first in range(0, N, BLOCK):
    q = np.arange(first, min(first + BLOCK, N), dtype=np.int32)
    blocks = pattern.candidates(layout, first, int(q[-1]), BLOCK, head)
    if blocks is None:
      k = np.arange(q[-1] + 1, dtype=np.int32)
    else:
      k = (blocks.astype(np.int32)[:, None] * BLOCK + np.arange(BLOCK, dtype=np.int32)).reshape(-1)
      k = k[k <= q[-1]]
    allowed = pattern.allows(layout, q[:, None], k, np.int32(head))
    yield first, k, np.broadcast_to(allowed, (q.size, k.size))


def _find_last_queries(
  pattern: Pattern, layout: TokenLayout, head: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the last query that reads each key, and the number of keys that each query reads.

  If no later query reads a key, its last query is the query at its own position.
  """
  last, counts = np.arange(layout.length), np.zeros(layout.length, np.int64)
  for first, k, allowed in _edges(pattern, layout, head):
    row = first + allowed.shape[0] - 1 - allowed[::-1].argmax(axis=0)
    seen = allowed.any(axis=0)
    last[k[seen]] = np.maximum(last[k[seen]], row[seen])
    counts[first : first + allowed.shape[0]] = allowed.sum(axis=1)
  return last, counts


def _assign_slots(last: np.ndarray) -> tuple[np.ndarray, int]:
  """Gives each key the lowest slot that is free at its step; returns the slots and their number."""
  slots, count = np.zeros(last.size, np.int32), 0
  free: list[int] = []
  occupied: list[tuple[int, int]] = []  # (last query, slot)
  for key, end in enumerate(last.tolist()):
    while occupied and occupied[0][0] < key:
      heapq.heappush(free, heapq.heappop(occupied)[1])
    if not free:
      free.append(count)
      count += 1
    slots[key] = heapq.heappop(free)
    heapq.heappush(occupied, (end, int(slots[key])))
  return slots, count


def _reads(
  pattern: Pattern, head: int, layout: TokenLayout, slots: np.ndarray, width: int
) -> np.ndarray:
  """Returns the slots each query reads, int32 (N, `width`), in the order of keys; -1 is padding."""
  table = np.full((layout.length, width), -1, np.int32)
  for first, k, allowed in _edges(pattern, layout, head):
    row, column = np.nonzero(allowed)
    starts = np.concatenate([[0], np.cumsum(allowed.sum(axis=1))])[:-1]
    table[first + row, np.arange(row.size) - starts[row]] = slots[k[column]]
  return table
