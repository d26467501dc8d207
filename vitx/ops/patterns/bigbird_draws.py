"""Draws the random key blocks of BigBird's query blocks, uniformly or as the released code does."""

from typing import Any

import numpy as np

from vitx.config.checks import check_choice
from vitx.ops.patterns.draws import BLOCKS, skip_excluded, subsets
from vitx.ops.patterns.indices import namespace

PLANS = ("uniform", "bigbird")
PAPER_LENGTHS = (1024, 3072, 4096)  # the paper's own runs, for which the code has other ranges


def draw(
  length: int,
  block: int,
  count: int,
  *,
  heads: int = 1,
  plan: str = "uniform",
  seed: Any = 0,
  step: Any = 0,
  layer: Any = 0,
  window: int = 0,
  anchors: tuple[int, ...] = (),
) -> Any:
  """Draws the random key blocks of every query block, without replacement.

  The draw is a function of (seed, step, layer). NumPy computes it for plain integers, and JAX
  computes equal numbers if one of them is traced.

  Plan "uniform" draws from all blocks except the query's own, the window and the anchors. Plan
  "bigbird" draws from the ranges of `published_ranges` except the blocks of `published_exclusions`,
  as the released code does (google-research/bigbird, `core/attention.py`). In that code the first
  and the last query block attend everything and draw nothing; here they draw uniformly unless they
  are anchors.

  Args:
    length: The number N of tokens.
    block: The number b of tokens in a block.
    count: The number r of blocks to draw.
    heads: The number of different draws.
    plan: The rule of the draw, "uniform" or "bigbird".
    seed, step, layer: The integers that determine the draw; the step stays 0 for a graph that is
      drawn once.
    window: The width in blocks of the window around a query block from which "uniform" does not
      draw; 0 excludes the query block only.
    anchors: The global blocks, which "uniform" does not draw. As query blocks they draw nothing.

  Returns:
    The key blocks, int32 (heads, m, r), m = ceil(N / b); -1 fills up if there are fewer than r.
  """
  check_choice(plan, "plan", PLANS)
  m = -(-length // block)
  rows = np.arange(m)
  head = np.arange(heads)[:, None]
  silent = np.isin(rows, [anchor % m for anchor in anchors])

  def pick(number: int, low: int, high: int, take: int, illegal: list[np.ndarray]) -> Any:
    excluded = _sort_excluded(np.stack(illegal, axis=-1), low, high)  # (m, x), relative to `low`
    sizes = high - low - (excluded < high - low).sum(axis=-1)
    sizes = np.where(silent, 0, sizes)
    ranks = subsets(sizes, take, BLOCKS, seed, step, layer, head, rows, number)
    blocks = skip_excluded(ranks, excluded)
    return namespace(blocks).where(blocks >= 0, blocks + low, -1)  # (heads, m, take)

  illegal = [rows + shift for shift in range(-(window // 2), window // 2 + 1)]
  illegal += [np.full(m, anchor % m) for anchor in anchors]
  uniform = pick(0, 0, m, count, illegal)
  if plan == "uniform":
    return uniform.astype(np.int32)
  near_start = draws_near_start(length, block)
  parts = [
    pick(number, low, high, take, published_exclusions(m, high, near_start))
    for number, (low, high, take) in enumerate(published_ranges(length, block, count), start=1)
  ]
  xp = namespace(uniform)
  ends = (rows == 0) | (rows == m - 1)
  return xp.where(ends[:, None], uniform, xp.concatenate(parts, axis=-1)).astype(np.int32)


def draws_near_start(length: int, block: int) -> bool:
  """Returns whether BigBird's code draws from the first 1024 tokens, as in the paper's runs."""
  return length in PAPER_LENGTHS and 2 * block < 1024


def published_ranges(length: int, block: int, count: int) -> list[tuple[int, int, int]]:
  """Returns the ranges of blocks from which BigBird's code draws: (first, end, number of draws).

  The number r of blocks to draw is `count`. Inputs of 1024, 3072 or 4096 tokens draw from the first
  1024 tokens, which BigBird's first author calls intentional. Other inputs of more than 2r + 5
  blocks draw from the first 2r + 5 blocks. Shorter inputs draw from one or two ranges.
  """
  m, near = -(-length // block), count + 5
  if draws_near_start(length, block):
    return [(1, 1024 // block, count)]
  if m > 2 * count + 5:
    return [(0, 2 * count + 5, count)]
  if m > near and count > 1:
    return [(0, near, count // 2), (near, m, count - count // 2)]
  if m > near:
    return [(near, m, count)]
  return [(0, m, count)]


def published_exclusions(m: int, high: int, near_start: bool) -> list[np.ndarray]:
  """Returns the key blocks that BigBird's code does not draw, in arrays (m,) by query block.

  They are the three blocks of the window and the first block. If `near_start` is False,
  they are also the last block of the range, and blocks 1 and `high` - 2 do not draw each other.

  Args:
    m: The number of query blocks.
    high: The end of the range of key blocks, exclusive.
    near_start: The result of `draws_near_start`.
  """
  rows = np.arange(m)
  illegal = [rows - 1, rows, rows + 1, np.zeros(m, int)]
  if near_start:
    return illegal
  illegal.append(np.full(m, high - 1))
  # Row 1 may not draw the second to last block of the range, nor may that block's row draw block 1.
  illegal.append(np.where(rows == 1, high - 2, 0))
  illegal.append(np.where(rows == high - 2, 1, 0))
  return illegal


def _sort_excluded(blocks: np.ndarray, low: int, high: int) -> np.ndarray:
  """Lists, for each query block, the different key blocks in [low, high) that it may not draw.

  The results are offsets from `low`, (m, x), in increasing order without repeats. Unused places, at
  the end of a row, have offsets of at least `high - low`, which exclude nothing.
  """
  width = high - low
  relative = np.sort(np.where((blocks < low) | (blocks >= high), width, blocks - low), axis=-1)
  repeated = np.diff(relative, axis=-1, prepend=-1) == 0
  return np.sort(np.where(repeated, width + blocks.shape[-1], relative), axis=-1)
