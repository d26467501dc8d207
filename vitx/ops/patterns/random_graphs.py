"""Two models of random graphs over tokens, by which BigBird's paper motivates its pattern.

Their edges are functions of a seed, so there is no state.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Drawn
from vitx.ops.patterns.draws import EDGES, REWIRE, TARGETS, below, subsets
from vitx.ops.patterns.indices import Blocks, Index, blocks_between, blocks_of, distinct, namespace


@dataclasses.dataclass(frozen=True)
class ErdosRenyi(Drawn):
  """A random graph whose edges exist independently with probability p (Erdős and Rényi 1959).

  The predicate is a hash of (seed, layer, head, query, key): there is no array of edges.

  Attributes:
    p: The probability of an edge.
    keep_self: Whether every token also attends itself.
    symmetric: Whether edge (q, k) implies (k, q), as in the undirected model.
    heads: The number of different draws; head h has draw h mod `heads`.
    seed, layer: The integers that determine the draw; `at(layer)` sets the layer.
  """

  p: float
  keep_self: bool = True
  symmetric: bool = False
  heads: int = 1
  seed: int = 0
  layer: int = 0

  def __post_init__(self):
    if not 0 <= self.p <= 1:
      raise ConfigError(f"{self}: p must be in [0, 1].")

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    xp = namespace(q, k, head)
    low, high = (xp.minimum(q, k), xp.maximum(q, k)) if self.symmetric else (q, k)
    drawn = below(self.p, EDGES, self.seed, self.layer, head % self.heads, low, high)
    return (drawn & (q != k)) | ((q == k) & self.keep_self)


@dataclasses.dataclass(frozen=True)
class WattsStrogatz(Drawn):
  """A ring of near neighbors with some links moved to random tokens: clustered, with short paths.

  Watts and Strogatz 1998: token i is linked to the next w/2 tokens on the ring. Each link moves its
  far end with probability beta, to a token outside i's neighborhood on the ring. The new ends for
  one token are all different; two tokens that draw each other share a link.

  Attributes:
    neighbors: The even number w of a token's links before any is moved, half of them on each side.
    beta: The probability that a link moves.
    keep_moved: Whether a moved link also keeps its old end, as in BigBird's appendix.
    keep_self: Whether every token also attends itself.
    heads: The number of different draws; head h has draw h mod `heads`.
    seed, layer: The integers that determine the draw; `at(layer)` sets the layer.
  """

  neighbors: int = 8
  beta: float = 0.1
  keep_moved: bool = False
  keep_self: bool = True
  heads: int = 1
  seed: int = 0
  layer: int = 0

  def __post_init__(self):
    if self.neighbors < 2 or self.neighbors % 2 or not 0 <= self.beta <= 1:
      raise ConfigError(f"{self}: neighbors must be even and > 0, and beta in [0, 1].")

  def targets(self, layout: TokenLayout) -> np.ndarray:
    """Returns the tokens to which each token's own links lead.

    The array is int32 (heads, N, w/2), or (heads, N, w) with `keep_moved`; w is `neighbors`.
    """
    return _targets(self, layout.length)

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    table = namespace(q, k, head).asarray(self.targets(layout))
    turn = head % self.heads
    edges = (q == k) & self.keep_self
    for column in range(table.shape[-1]):
      edges = edges | (table[turn, q, column] == k) | (table[turn, k, column] == q)
    return edges

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    N, half = layout.length, self.neighbors // 2
    outgoing = self.targets(layout)[head % self.heads, first : last + 1]
    order, starts = _incoming(self, N, head % self.heads)
    incoming = order[starts[first] : starts[last + 1]]
    near = blocks_between(first - half, last + half, block, N)
    return distinct([near, blocks_of(outgoing, block, N), blocks_of(incoming, block, N)])


@functools.lru_cache(maxsize=64)
def _targets(pattern: WattsStrogatz, length: int) -> np.ndarray:
  w, half = pattern.neighbors, pattern.neighbors // 2
  if length < 2 * w + 1:
    raise ConfigError(f"WattsStrogatz.neighbors={w} needs {2 * w + 1} tokens, not {length}.")
  token: Index = np.arange(length)
  head = np.arange(pattern.heads)[:, None]
  names = (pattern.seed, pattern.layer, head)
  ring = (token[:, None] + np.arange(1, half + 1)) % length  # (N, w/2)
  ring = np.broadcast_to(ring, (pattern.heads, length, half))
  outside = subsets(np.full(length, length - w - 1), half, TARGETS, *names, token)
  far = (token[:, None] + half + 1 + outside) % length  # (heads, N, w/2)
  link = np.arange(half)
  moved = below(
    pattern.beta, REWIRE, *(np.asarray(n)[..., None] for n in names), token[:, None], link
  )
  if pattern.keep_moved:
    result = np.concatenate([ring, np.where(moved, far, ring)], axis=-1)
  else:
    result = np.where(moved, far, ring)
  result = result.astype(np.int32)
  result.flags.writeable = False
  return result


@functools.lru_cache(maxsize=64)
def _incoming(pattern: WattsStrogatz, length: int, head: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the near ends of links, sorted by far ends, and each far end's first link, (N + 1,)."""
  table = _targets(pattern, length)[head]
  flat = table.reshape(-1)
  order = np.argsort(flat, kind="stable") // table.shape[-1]
  starts = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=length))])
  return order, starts
