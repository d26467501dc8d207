"""Resizes weights that have an entry for each token, so that they fit another grid of tokens.

Such weights are a learned position table, Linformer's projection, MLP-Mixer's token MLP, and
Sparsifiner's basis. Entries of the grid are interpolated (cubic; Dosovitskiy et al. 2021, section
3.2); entries of tokens in front of the grid stay unchanged. If the network sums over the tokens
with these weights, the grid's entries are multiplied by (old number of grid tokens) / (new number),
so that the sum keeps its size.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.layout import TokenLayout


def resize(
  source: np.ndarray,
  target: np.ndarray,
  axis: int,
  summed: bool,
  source_layout: TokenLayout,
  layout: TokenLayout,
) -> np.ndarray:
  """Resizes weights to the grid of a target.

  Args:
    source: The weights, with an entry along `axis` for each token, or for each token of the grid.
    target: The weights of another layout. If this layout has more prefix tokens than the source,
      the additional prefix tokens keep the target's entries.
    axis: The axis of the tokens.
    summed: Whether the network sums over the tokens with these weights. Then the grid's entries are
      multiplied by the old number of grid tokens divided by the new one, so that the sum keeps its
      size.
    source_layout: The layout of the source's tokens.
    layout: The layout of the target's tokens.

  Returns:
    The resized weights, with shape and dtype of the target.
  """
  rows = np.moveaxis(target, axis, 0)
  old = np.moveaxis(source, axis, 0).reshape(source.shape[axis], -1).astype(np.float32)
  new = rows.reshape(len(rows), -1).astype(np.float32)
  before, after = math.prod(source_layout.grid), math.prod(layout.grid)
  prefix, new_prefix = len(old) - before, len(new) - after
  shared = min(prefix, new_prefix)
  new[:shared] = old[:shared]
  grid = jnp.asarray(old[prefix:].reshape(*source_layout.grid, -1))
  grid = jax.image.resize(grid, (*layout.grid, grid.shape[-1]), "cubic")
  new[new_prefix:] = np.asarray(grid).reshape(after, -1)
  if summed:
    new[new_prefix:] *= before / after
  return np.moveaxis(new.reshape(rows.shape), 0, axis).astype(target.dtype)


def explain_refusal(
  source: tuple[int, ...],
  target: tuple[int, ...],
  axis: int,
  source_layout: TokenLayout | None,
  layout: TokenLayout | None,
) -> str:
  """Returns the reason why weights cannot be resized to a target, or "" if they can.

  Args:
    source: The shape of the weights.
    target: The shape of the target.
    axis: The axis of the tokens.
    source_layout: The layout of the source's tokens; None if it is not known.
    layout: The layout of the target's tokens; None if it is not known.
  """
  without = [[n for i, n in enumerate(shape) if i != axis] for shape in (source, target)]
  if len(source) != len(target) or without[0] != without[1]:
    return "the shapes differ in more than the number of tokens"
  lengths = f"it has entries for {source[axis]} tokens, but {target[axis]} are needed"
  if source_layout is None or layout is None:
    return f"{lengths}, and the layout of the tokens is not known"
  for shape, known in ((source, source_layout), (target, layout)):
    if shape[axis] not in (known.length, math.prod(known.grid)):
      return f"{lengths}, and {shape[axis]} entries do not fit {describe(known)}"
  has_prefix = [n[axis] == x.length for n, x in ((source, source_layout), (target, layout))]
  if source_layout.prefix and layout.prefix and has_prefix[0] != has_prefix[1]:
    return f"{lengths}, and only one of them has entries for the tokens in front of the grid"
  if len(layout.grid) != len(source_layout.grid):
    grids = f"{describe(source_layout)} and {describe(layout)}"
    return f"{lengths}, and {grids} have different numbers of axes"
  return ""


def describe(layout: TokenLayout) -> str:
  """Returns a short description of a layout, such as "1 + 8 x 8 tokens"."""
  grid = " x ".join(map(str, layout.grid))
  return f"{layout.prefix} + {grid} tokens" if layout.prefix else f"{grid} tokens"
