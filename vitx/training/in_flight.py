"""Steps that were dispatched and not yet awaited: at most two."""

import collections
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

LIMIT = 2  # unbounded dispatch deadlocks XLA's collectives between virtual CPU devices


class InFlight:
  """The steps under way, oldest first.

  Attributes:
    stop: whether a step that was awaited said that a process was asked to end.
  """

  def __init__(self, finish: Callable[[int, dict[str, float]], None]):
    """Calls `finish` with the number and the metrics of every step, in order, once it is done."""
    self.stop = False
    self._finish = finish
    self._steps: collections.deque[tuple[int, Any, jax.Array]] = collections.deque()

  def add(self, step: int, metrics: Any, stop: jax.Array) -> None:
    """Takes in what a step returned, on its devices."""
    self._steps.append((step, metrics, stop))

  def make_room(self) -> None:
    """Waits for the oldest step if the limit is reached."""
    if len(self._steps) == LIMIT:
      self._wait_for_oldest()

  def wait(self) -> None:
    """Waits for all steps."""
    while self._steps:
      self._wait_for_oldest()

  def _wait_for_oldest(self) -> None:
    step, metrics, stop = self._steps.popleft()
    values = {name: float(_first(x)) for name, x in metrics.items()}
    self._finish(step, values)
    self.stop |= bool(_first(stop))


def _first(x: jax.Array) -> Any:
  """Returns the scalar of the first local device; it is the same on all."""
  return np.asarray(x.addressable_data(0)).reshape(-1)[0]
