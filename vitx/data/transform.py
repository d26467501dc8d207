"""Transforms of single examples on the host, before they enter a batch."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vitx.data.dataset import Example


class Transform(Protocol):
  """A function that turns an example into the arrays of one row of a batch.

  All results of a transform have equal shapes. A transform with an attribute `takes_encoded = True`
  gets examples from `dataset.read_encoded`. The runs of a sweep share the results of equal
  transforms, so a transform should be a frozen dataclass.

  Attributes:
    draws: Whether the result depends on random bits, so that it cannot be kept in memory.
  """

  @property
  def draws(self) -> bool: ...

  def __call__(self, example: Example, bits: np.random.Philox | None) -> Example:
    """Returns the arrays that an example contributes to a batch.

    Args:
      example: The arrays of the example.
      bits: The random bits for this example and step, or None if the transform draws none.
    """
    ...


@dataclass(frozen=True)
class Identity:
  """A transform that returns its input, for sources whose arrays have one shape."""

  draws = False

  def __call__(self, example: Example, bits: np.random.Philox | None = None) -> Example:
    return example
