"""The resizing, to another grid, of token mixers' weights that are bound to the number of tokens.

Such a weight has an entry for each token: a row of Linformer's projection, of MLP-Mixer's token
MLP, or of Sparsifiner's basis. Entries of the grid are interpolated like the rows of a position
table; entries of tokens in front of the grid stay unchanged. If the weights sum over tokens, the
grid's entries are multiplied by (old number of patches) / (new number), so that the sum keeps its
size.
"""

import math

import numpy as np

from vitx.models import position_tables
from vitx.ops.layout import TokenLayout


def resize(
  source: np.ndarray,
  target: np.ndarray,
  axis: int,
  summed: bool,
  source_layout: TokenLayout,
  layout: TokenLayout,
) -> np.ndarray:
  """Returns the source's weights on the target's grid.

  Args:
    source: The weights, with an entry along `axis` for each token, or for each token of the grid.
    target: The weights of another layout. If it has more prefix tokens than the source, the further
      ones keep the target's entries.
    axis: The axis of the tokens.
    summed: Whether the weights sum over the tokens.
    source_layout: The layout of the source's tokens.
    layout: The layout of the target's tokens.

  Returns:
    The resized weights, with shape and dtype of the target.
  """
  rows, shape = np.moveaxis(target, axis, 0), np.moveaxis(target, axis, 0).shape
  old = np.moveaxis(source, axis, 0).reshape(source.shape[axis], -1).astype(np.float32)
  new = rows.reshape(len(rows), -1).astype(np.float32)
  table = position_tables.resize(old, new, source_layout, layout)
  if summed:
    patches = math.prod(layout.grid)
    table[len(table) - patches :] *= math.prod(source_layout.grid) / patches
  return np.moveaxis(table.reshape(shape), 0, axis).astype(target.dtype)


def explain_refusal(
  source: tuple[int, ...],
  target: tuple[int, ...],
  axis: int,
  source_layout: TokenLayout | None,
  layout: TokenLayout | None,
) -> str:
  """Returns the reason why such weights cannot be resized; "" if they can."""
  without = [[n for i, n in enumerate(shape) if i != axis] for shape in (source, target)]
  if len(source) != len(target) or without[0] != without[1]:
    return "shapes differ, and not in the number of tokens alone"
  lengths = f"it is of {source[axis]} tokens, and {target[axis]} are wanted"
  reason = position_tables.explain_refusal(
    (source[axis], 1), (target[axis], 1), source_layout, layout
  )
  return f"{lengths}: {reason}" if reason else ""
