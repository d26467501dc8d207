"""What the host does to one example before it enters a batch."""

from typing import Protocol

import numpy as np

from vitx.data.dataset import Example


class Transform(Protocol):
  """From an example to the arrays of a batch's row, which have one shape for all examples.

  Attributes:
    draws: whether the result depends on random bits, so that it cannot be kept in memory.

  One that has `takes_encoded = True` is given examples as `dataset.read_encoded` has them.
  """

  @property
  def draws(self) -> bool: ...

  def __call__(self, example: Example, bits: np.random.Philox | None) -> Example:
    """Returns the arrays of a row; `bits` are this row's own where it draws, else None."""
    ...


class Identity:
  """Leaves examples as they are, for sources whose arrays have one shape."""

  draws = False

  def __call__(self, example: Example, bits: np.random.Philox | None = None) -> Example:
    return example
