"""Steps under way: they were dispatched and not yet awaited, in at most two dispatches."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

LIMIT = 2  # unbounded dispatch deadlocks XLA's collectives between virtual CPU devices


class InFlight:
  """The steps under way, oldest first.

  Attributes:
    stop: whether a process was asked to end, as a step that was awaited has told.
  """

  def __init__(self, finish: Callable[[int, dict[str, Any], dict[str, Any]], None]):
    """Starts with no step.

    Args:
      finish: called for every step, in order, once it is done, with its number, its metrics, and
        what was measured of the state after it: {} but for the last step of a dispatch.
    """
    self.stop = False
    self._finish = finish
    self._steps: collections.deque[tuple[range, Any, Any, jax.Array, Any]] = collections.deque()

  def add(
    self, steps: range, metrics: Any, measured: Any, stop: jax.Array, more: Mapping[str, Any]
  ) -> None:
    """Takes in what a dispatch returned, on its devices: metrics of each of its steps.

    Args:
      steps: the numbers of the dispatch's steps.
      metrics: an entry for each step.
      measured: figures of the state after the last step.
      stop: whether a process was asked to end.
      more: further figures of that state, on the host, as `finish` takes them.
    """
    self._steps.append((steps, metrics, measured, stop, more))

  def make_room(self) -> None:
    """Waits for the oldest dispatch if the limit is reached."""
    if len(self._steps) == LIMIT:
      self._wait_for_oldest()

  def wait(self) -> None:
    """Waits for all steps."""
    while self._steps:
      self._wait_for_oldest()

  def _wait_for_oldest(self) -> None:
    steps, metrics, measured, stop, more = self._steps.popleft()
    values = {name: first_copy(x) for name, x in metrics.items()}
    last = {name: first_copy(x).tolist() for name, x in measured.items()} | dict(more)
    for i, step in enumerate(steps):
      own = {name: value[i].tolist() for name, value in values.items()}
      self._finish(step, own, last if step == steps[-1] else {})
    self.stop |= bool(first_copy(stop))


def first_copy(x: jax.Array) -> np.ndarray:
  """Returns what the first local device has; it is the same on all."""
  return np.asarray(x.addressable_data(0))[0]
