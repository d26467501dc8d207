"""Limits how many calls of the training program are in flight, their results not yet awaited."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import jax

from vitx.runtime import parallel

LIMIT = 2  # unbounded dispatch deadlocks XLA's collectives between virtual CPU devices


class InFlight:
  """A queue of the dispatches whose results have not been awaited, oldest first.

  A dispatch is one call of a compiled program, which makes several training steps.

  Attributes:
    stop: Whether any process was asked to end, according to the dispatches awaited so far.
  """

  def __init__(self, finish: Callable[[int, dict[str, Any], dict[str, Any]], None]):
    """Makes an empty queue.

    Args:
      finish: A function `(step, metrics, figures)` that is called for every step, in order, once
        the step is done. For the last step of a dispatch, `figures` has the values measured on the
        state after this step, such as `parameter_norm`; for the other steps it is {}.
    """
    self.stop = False
    self._finish = finish
    self._steps: collections.deque[tuple[range, Any, Any, Any, Any]] = collections.deque()

  def add(
    self, steps: range, metrics: Any, measured: Any, stop: jax.Array, more: Mapping[str, Any]
  ) -> None:
    """Adds the results of a dispatch, which the devices may still be computing.

    Args:
      steps: The numbers of the dispatch's steps, counted from 0.
      metrics: The metrics by name, each with an entry for each step.
      measured: The values measured on the state after the last step, such as `parameter_norm`, by
        name, on the devices.
      stop: Whether any process was asked to end.
      more: Further values measured on this state, which are on the host already.
    """
    self._steps.append((steps, metrics, measured, stop, more))

  def wait(self, most: int = 0) -> None:
    """Waits for the oldest dispatches until at most `most` dispatches are in flight."""
    while len(self._steps) > most:
      steps, metrics, measured, stop, more = self._steps.popleft()
      values, measured, stop = parallel.unreplicate((metrics, measured, stop))
      last = {name: value.tolist() for name, value in measured.items()} | dict(more)
      for i, step in enumerate(steps):
        step_metrics = {name: value[i].tolist() for name, value in values.items()}
        self._finish(step, step_metrics, last if step == steps[-1] else {})
      self.stop |= bool(stop)
