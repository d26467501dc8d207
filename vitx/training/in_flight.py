"""Steps in flight: dispatched but not yet awaited, in at most two dispatches."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

LIMIT = 2  # unbounded dispatch deadlocks XLA's collectives between virtual CPU devices


class InFlight:
  """The steps in flight, oldest first.

  Attributes:
    stop: Whether a process was asked to end, according to the steps that were awaited.
  """

  def __init__(self, finish: Callable[[int, dict[str, Any], dict[str, Any]], None]):
    """Starts without steps.

    Args:
      finish: A function that is called for every step, in order, once it is done, with its number,
        its metrics and the figures of the state after it; these are {} except for the last step of
        a dispatch.
    """
    self.stop = False
    self._finish = finish
    self._steps: collections.deque[tuple[range, Any, Any, jax.Array, Any]] = collections.deque()

  def add(
    self, steps: range, metrics: Any, measured: Any, stop: jax.Array, more: Mapping[str, Any]
  ) -> None:
    """Adds the results of a dispatch, which are on the devices.

    Args:
      steps: The numbers of the dispatch's steps.
      metrics: The metrics, with an entry for each step.
      measured: The figures of the state after the last step.
      stop: Whether a process was asked to end.
      more: Further figures of that state, on the host; `finish` gets them too.
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
  """Returns an array's copy on the first local device; all copies are equal."""
  return np.asarray(x.addressable_data(0))[0]
