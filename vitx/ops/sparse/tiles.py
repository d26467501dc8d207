"""Chooses the tile size of a pattern by a model of the cost.

Small tiles visit less of the matrix; large ones cost less for each element that they visit. A pair
of a query block and a key block of b tokens each costs PAIR + ROW b + ELEMENT b²: a constant, a
cost of its rows, and a cost of its elements. Pairs that pad the lists of key blocks cost as much.
The constants are nanoseconds of processor time for one example and head, forward and backward,
D = 64, float32, on two CPU cores: a least-squares fit over seven patterns in tiles of 16, 32 and 64
tokens, B = 2, H = 4. For eight other patterns the chosen tile was the fastest measured:
`docs/patterns.md` has the table. Only the ratios of the constants matter; other platforms use them
too, without measurements.
"""

import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.parts import Part
from vitx.ops.sparse.block_mask import count_tiles
from vitx.ops.sparse.permute import in_order
from vitx.ops.sparse.rows import class_widths

TILES = (16, 32, 64)  # tokens; in a 2-D grid, patches of 4 x 4, 4 x 8, 8 x 8 if its sides allow
PAIR, ROW, ELEMENT = 6700.0, 190.0, 27.0
SAMPLE = 2048  # queries whose tiles are counted, a sample if there are more

Heads = tuple[tuple[Part, ...], ...]


def cost(heads: Heads, layout: TokenLayout) -> float:
  """Returns the cost of attention in the block-sparse parts, in nanoseconds per example and head.

  The cost of other parts, such as dense runs, does not depend on the tile.

  Args:
    heads: The parts of each head.
    layout: The layout of the N tokens.
  """
  total = 0.0
  for parts in heads:
    for part in parts:
      if part.core == "block_sparse":
        b = part.block
        total += _count_pairs(part, layout) * (PAIR + ROW * b + ELEMENT * b**2)
  return total / len(heads)


def _count_pairs(part: Part, layout: TokenLayout) -> float:
  """Returns the number of block pairs in the padded lists of head 0, estimated from a sample."""
  pattern, layout = in_order(part.pattern, layout, part.order)
  count = -(-layout.length // part.block)
  sampled = max(3, SAMPLE // part.block)
  rows = np.unique(np.linspace(0, count - 1, min(count, sampled)).round().astype(np.int64))
  lengths = count_tiles(pattern, layout, part.block, rows)
  # The two end rows, where global tokens mostly are, count once. The others represent the rest.
  inner = max(0, count - 2) / max(1, rows.size - 2)
  weights = np.where((rows == 0) | (rows == count - 1), 1.0, inner)
  widths = np.array([0, *class_widths(np.repeat(lengths, np.ceil(weights).astype(np.int64)))])
  return float((weights * widths[np.searchsorted(widths, lengths)]).sum())
