"""The resizing of learned position tables to another grid of tokens."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.layout import TokenLayout


def resize(
  source: np.ndarray, target: np.ndarray, source_layout: TokenLayout, layout: TokenLayout
) -> np.ndarray:
  """Returns the source's position table on the target's grid.

  Args:
    source: A table (1, N, C) or (N, C), with a row for each token, or for each token of the grid.
    target: A table of that kind for another layout. If it has more prefix tokens than the source,
      the further ones keep the target's rows.
    source_layout: The layout of the source's tokens.
    layout: The layout of the target's tokens.

  Returns:
    The resized table, with shape and dtype of the target.
  """
  prefix, new_prefix = _prefix_rows(source, source_layout), _prefix_rows(target, layout)
  channels = source.shape[-1]
  table = source.reshape(-1, channels).astype(np.float32)
  grid = table[prefix:].reshape(*source_layout.grid, channels)
  grid = jax.image.resize(jnp.asarray(grid), (*layout.grid, channels), "cubic")
  result = target.reshape(-1, channels).astype(np.float32)
  kept = min(prefix, new_prefix)
  result[:kept] = table[:kept]
  result[new_prefix:] = np.asarray(grid).reshape(-1, channels)
  return result.reshape(target.shape).astype(target.dtype)


def _prefix_rows(table: np.ndarray, layout: TokenLayout) -> int:
  """Returns the number of prefix tokens that have a row in the table: all of them, or none."""
  return table.shape[-2] - math.prod(layout.grid)


def explain_refusal(
  source: tuple[int, ...],
  target: tuple[int, ...],
  source_layout: TokenLayout | None,
  layout: TokenLayout | None,
) -> str:
  """Returns the reason why a position table cannot be resized; "" if it can."""
  same_kind = len(source) == len(target) and source[-1] == target[-1]
  tables = len(source) == 2 or (len(source) == 3 and source[0] == target[0] == 1)
  if not (same_kind and tables):
    return "only tables (1, N, C) or (N, C) of one width are resized"
  for shape, known in ((source, source_layout), (target, layout)):
    if known is None:
      return "how its tokens lie is not known"
    if shape[-2] not in (known.length, math.prod(known.grid)):
      return f"it has {shape[-2]} rows for {describe(known)}"
  assert layout is not None and source_layout is not None
  if len(layout.grid) != len(source_layout.grid):
    return f"{describe(source_layout)} and {describe(layout)} have another number of axes"
  return ""


def describe(layout: TokenLayout) -> str:
  """Returns a short description of a layout, such as "1 + 8 x 8 tokens"."""
  grid = " x ".join(map(str, layout.grid))
  return f"{layout.prefix} + {grid} tokens" if layout.prefix else f"{grid} tokens"
