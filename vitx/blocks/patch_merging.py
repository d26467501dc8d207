"""Swin's step between stages, which merges four neighboring tokens into one."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.ops.layout import TokenLayout


class PatchMerging(nn.Module):
  """Merges the four tokens of each 2 x 2 cell into one token with 2 C channels.

  (Liu et al. 2021, section 3.1.) The tokens of a cell are concatenated, normalized, and mapped
  linearly. As in the released code, the left column of the cell comes first, from top to bottom. A
  row or column of zeros is added at the end of a grid with an odd side.

  Attributes:
    norm: A function that makes the normalization; its arguments are `dtype` and `name`.
    dtype: The dtype of the computation.
  """

  norm: Callable[..., nn.Module] = nn.LayerNorm
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, layout: TokenLayout) -> tuple[jax.Array, TokenLayout]:
    """Returns the N' tokens (B, N', 2 C) and their layout; there must be no prefix token."""
    rows, columns = layout.grid
    batch, _, width = x.shape
    grid = x.reshape(batch, rows, columns, width)
    grid = jnp.pad(grid, ((0, 0), (0, rows % 2), (0, columns % 2), (0, 0)))
    after = TokenLayout((-(-rows // 2), -(-columns // 2)))
    cells = grid.reshape(batch, after.grid[0], 2, after.grid[1], 2, width)
    merged = cells.transpose(0, 1, 3, 4, 2, 5).reshape(batch, after.length, 4 * width)
    merged = self.norm(dtype=self.dtype, name="norm")(merged)
    reduce = nn.Dense(2 * width, use_bias=False, dtype=self.dtype, name="reduce")
    return reduce(merged), after
