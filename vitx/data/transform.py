"""Transforms of single examples on the host, before they enter a batch."""

from typing import Protocol

import numpy as np

from vitx.data.dataset import Example


class Transform(Protocol):
  """A function from an example to the arrays of its row in a batch; the shapes are always equal.

  A transform with an attribute `takes_encoded = True` gets examples from `dataset.read_encoded`.

  Attributes:
    draws: Whether the result depends on random bits, so that it cannot be kept in memory.
  """

  @property
  def draws(self) -> bool: ...

  def __call__(self, example: Example, bits: np.random.Philox | None) -> Example:
    """Returns the arrays of a row of a batch.

    Args:
      example: The arrays of an example.
      bits: The random bits of this row if the transform draws any, else None.
    """
    ...


class Identity:
  """A transform that returns its input, for sources whose arrays have one shape."""

  draws = False

  def __call__(self, example: Example, bits: np.random.Philox | None = None) -> Example:
    return example
