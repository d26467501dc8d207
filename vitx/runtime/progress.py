"""The console output of a run: progress bars, and the time that steps and data take."""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from vitx.analysis.tables import format_figure

T = TypeVar("T")
SOON = 2.0  # seconds after which long work shows its progress
# The seconds that each part of the start of a run has taken in this process, such as "tracing".
SPENT: dict[str, float] = {}
_is_silent = False


def silence() -> None:
  """Ends the output of this process, except errors. Of several processes, only one prints."""
  global _is_silent
  _is_silent, sys.stdout = True, open(os.devnull, "w")  # noqa: SIM115 (to the end of the process)


@contextlib.contextmanager
def spending(part: str) -> Iterator[None]:
  """Adds the duration of a `with` block to a part of `SPENT`."""
  start = time.monotonic()
  yield
  SPENT[part] = SPENT.get(part, 0.0) + time.monotonic() - start


def announce(what: str, work: Callable[[], T], *, patience: float = 0.0) -> T:
  """Calls `work` and returns its result; prints the elapsed time every ten seconds meanwhile.

  A call that is shorter than `patience`, in seconds, prints nothing.
  """
  start, console = time.monotonic(), sys.stdout

  def show() -> None:
    print(f"{what} ... {time.monotonic() - start:.0f} s", flush=True, file=console)

  if not patience:
    print(f"{what} ...", flush=True)
  with _repeating(show, patience or 10.0, 10.0):
    result = work()
  if time.monotonic() - start >= patience:
    print(f"{what}: {time.monotonic() - start:.1f} s", flush=True)
  return result


@contextlib.contextmanager
def _repeating(function: Callable[[], None], first: float, period: float) -> Iterator[None]:
  """Calls a function in a thread after `first` seconds of a `with` block, then every `period`."""
  is_over = threading.Event()

  def repeat() -> None:
    wait = first
    while not is_over.wait(wait):
      function()
      wait = period

  threading.Thread(target=repeat, daemon=True).start()
  try:
    yield
  finally:
    is_over.set()


@contextlib.contextmanager
def count_bar(what: str, total: int, unit: str) -> Iterator[tqdm]:
  """Yields a bar that shows how many of `total` units are done, and how long the others take.

  The display begins after two seconds, even if nothing is counted yet. On a terminal it is a bar
  that disappears at the end; elsewhere, as in a pipe or a file, it is a line every ten seconds.
  """
  if _is_silent:
    yield tqdm(disable=True)
    return
  is_terminal = sys.stderr.isatty()
  shape = None if is_terminal else "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"
  apart = 0.2 if is_terminal else math.inf  # seconds between two drawings by tqdm itself
  settings: Any = dict(mininterval=apart, delay=SOON, leave=False, bar_format=shape)
  with tqdm(total=total, desc=what, unit=unit, **settings) as bar:

    def show() -> None:
      if is_terminal:
        bar.refresh()
        bar.last_print_t = time.time()  # otherwise tqdm does not know that it must clear the bar
      else:
        print(bar, file=sys.stderr, flush=True)

    with _repeating(show, SOON, 1.0 if is_terminal else 10.0):
      yield bar


def format_seconds(seconds: float) -> str:
  """Formats a duration for reading: 3725 seconds give "1h02m05s"."""
  minutes, second = divmod(round(seconds), 60)
  hours, minute = divmod(minutes, 60)
  if hours:
    return f"{hours}h{minute:02d}m{second:02d}s"
  return f"{minute}m{second:02d}s" if minute else f"{second}s"


class Progress:
  """A clock that measures the speed of training, the waits for data and the total time."""

  def __init__(self, *, step: int, total: int, batch_size: int, seconds: float):
    """Starts the clock.

    Args:
      step: The step to begin at.
      total: The last step.
      batch_size: The number of examples per step.
      seconds: The seconds that earlier runs spent on the steps before `step`.
    """
    self._total, self._batch_size = total, batch_size
    self._before, self._first, self._window_step = seconds, step, step
    self.begin()

  def begin(self) -> None:
    """Starts the clock again, so that earlier decoding and compiling do not count as training."""
    self._start = self._window_start = time.monotonic()
    self._waited = 0.0

  @property
  def seconds(self) -> float:
    """Returns the seconds spent on this training so far, over all its runs."""
    return self._before + time.monotonic() - self._start

  def timed(self, batches: Iterator[T]) -> Iterator[T]:
    """Yields `batches`, and adds up the time that the training waits for them."""
    while True:
      start = time.monotonic()
      try:
        batch = next(batches)
      except StopIteration:
        return
      self._waited += time.monotonic() - start
      yield batch

  def window(self, step: int) -> dict[str, Any]:
    """Returns the speed and times of the steps since the last call.

    The figures are `examples_per_second`; `waiting`, the share of the time spent waiting for data;
    `eta`, the expected seconds to the end; and `seconds`, the time of the whole training so far.
    Steps before the call of `begin`, maybe on another machine, do not count for `eta`.
    """
    now = time.monotonic()
    span = max(now - self._window_start, 1e-9)
    figures = {
      "examples_per_second": (step - self._window_step) * self._batch_size / span,
      "waiting": self._waited / span,
      "eta": (now - self._start) / (step - self._first) * (self._total - step),
      "seconds": self.seconds,
    }
    self._window_step, self._window_start, self._waited = step, now, 0.0
    return figures

  def line(
    self, step: int, row: dict[str, Any], words: str, times: dict[str, Any], epoch: float
  ) -> None:
    """Prints a line about a row of metrics; on a terminal it replaces the line before.

    Args:
      step: The number of steps done.
      row: A row of metrics, with `loss` and `learning_rate`.
      words: The task's text about the row; "" for none.
      times: The speed and times that `window` returned.
      epoch: The number of epochs done.
    """
    words = words and f"  {words}"
    text = (
      f"step {step}/{self._total} (epoch {epoch:.1f})  loss {format_figure(row['loss'])}{words}"
      f"  lr {row['learning_rate']:.2e}  {times['examples_per_second']:,.0f} examples/s"
      f"  waiting for data {times['waiting']:.0%}  ETA {format_seconds(times['eta'])}"
    )
    self.message(text, end="" if sys.stdout.isatty() else "\n")

  def message(self, text: str, *, end: str = "\n") -> None:
    """Prints a text; on a terminal it replaces the line of progress.

    With the default `end`, the text remains. With `end=""`, the next message replaces it.
    """
    print(f"\r\033[K{text}" if sys.stdout.isatty() else text, flush=True, end=end)
