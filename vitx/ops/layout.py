"""How tokens lie: a grid unrolled row by row behind a few prefix tokens."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class TokenLayout:
  """The arrangement of N tokens.

  Attributes:
    grid: extent of the token grid, `(height, width)` for images, `(length,)` for sequences. It is
      unrolled in C order, the last axis fastest.
    prefix: tokens in front of the grid that have no place in it (class token, registers).
    placed: False where tokens were given up or fused on the way: then those behind the prefix stand
      in no order that means anything, and `grid` is their number.
  """

  grid: tuple[int, ...]
  prefix: int = 0
  placed: bool = True

  @property
  def length(self) -> int:
    """Returns N, the number of tokens."""
    return self.prefix + math.prod(self.grid)
