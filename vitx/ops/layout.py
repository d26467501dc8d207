"""The layout of tokens: a grid unrolled row by row after a few prefix tokens."""

import dataclasses
import math

from vitx.config.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class TokenLayout:
  """The arrangement of N tokens.

  Attributes:
    grid: The extents of the token grid, `(height, width)` for images, `(length,)` for sequences.
      The grid is unrolled in C order, the last axis fastest.
    prefix: The number of tokens in front of the grid that have no place in it (class token,
      registers).
    has_places: Whether each token after the prefix has a place in the grid. False if tokens were
      dropped or fused earlier: their order then means nothing, and `grid` is only their number.
  """

  grid: tuple[int, ...]
  prefix: int = 0
  has_places: bool = True

  def __post_init__(self):
    grid = tuple(self.grid)
    if not grid or min(*grid, self.prefix + 1) < 1:
      raise ConfigError(
        f"TokenLayout(grid={self.grid!r}, prefix={self.prefix!r}): the extents of the grid must be"
        " positive, such as (14, 14) or (196,), and prefix at least 0."
      )
    object.__setattr__(self, "grid", grid)  # a list cannot be the key of a cache

  @property
  def length(self) -> int:
    """Returns N, the number of tokens."""
    return self.prefix + math.prod(self.grid)
