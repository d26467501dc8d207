"""What a person sees of a run: a line about compiling, then a line of progress."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def announce(what: str, work: Callable[[], T], *, every: float = 10.0) -> T:
  """Runs `work`, says so and, each `every` seconds, for how long already; returns its result."""
  start = time.monotonic()
  done = threading.Event()

  def tick() -> None:
    while not done.wait(every):
      print(f"{what} ... {time.monotonic() - start:.0f} s", flush=True)

  print(f"{what} ...", flush=True)
  threading.Thread(target=tick, daemon=True).start()
  try:
    result = work()
  finally:
    done.set()
  print(f"{what}: {time.monotonic() - start:.1f} s", flush=True)
  return result


def format_seconds(seconds: float) -> str:
  """Returns 3725 as `1h02m05s`."""
  minutes, second = divmod(round(seconds), 60)
  hours, minute = divmod(minutes, 60)
  if hours:
    return f"{hours}h{minute:02d}m{second:02d}s"
  return f"{minute}m{second:02d}s" if minute else f"{second}s"


class Progress:
  """Counts time: per window, waiting for data, and over all runs of the workdir."""

  def __init__(self, *, step: int, total: int, batch_size: int, seconds: float):
    """Starts counting.

    Args:
      step: the step to begin at.
      total: the last step.
      batch_size: examples per step.
      seconds: spent by earlier runs on the steps before `step`.
    """
    self._total, self._batch_size = total, batch_size
    self._before, self._window_step = seconds, step
    self.begin()

  def begin(self) -> None:
    """Starts the clock now, so that decoding and compiling do not count as training."""
    self._start = self._window_start = time.monotonic()
    self._waited = 0.0

  @property
  def seconds(self) -> float:
    """Returns the seconds spent on this training so far, over all its runs."""
    return self._before + time.monotonic() - self._start

  def timed(self, batches: Iterator[T]) -> Iterator[T]:
    """Passes batches on and counts the time that the training waits for them."""
    while True:
      start = time.monotonic()
      try:
        batch = next(batches)
      except StopIteration:
        return
      self._waited += time.monotonic() - start
      yield batch

  def window(self, step: int) -> dict[str, Any]:
    """Returns figures since the last call.

    They are examples_per_second, waiting (share of time), eta and seconds.
    """
    now = time.monotonic()
    span = max(now - self._window_start, 1e-9)
    figures = {
      "examples_per_second": (step - self._window_step) * self._batch_size / span,
      "waiting": self._waited / span,
      "eta": self.seconds / step * (self._total - step),
      "seconds": self.seconds,
    }
    self._window_step, self._window_start, self._waited = step, now, 0.0
    return figures

  def line(
    self, step: int, row: dict[str, Any], words: str, times: dict[str, Any], epoch: float
  ) -> None:
    """Prints a line of progress, over the previous one on a terminal.

    Args:
      step: the number of steps done.
      row: of the metrics, with loss and learning_rate.
      words: what the task says of the row; "" for nothing.
      times: of `window`.
      epoch: the number of epochs done.
    """
    words = words and f"  {words}"
    text = (
      f"step {step}/{self._total} (epoch {epoch:.1f})  loss {row['loss']:.4f}{words}"
      f"  lr {row['learning_rate']:.2e}  {times['examples_per_second']:,.0f} examples/s"
      f"  waiting for data {times['waiting']:.0%}  ETA {format_seconds(times['eta'])}"
    )
    print(f"\r\033[K{text}" if sys.stdout.isatty() else text, flush=True, end=_end())

  def message(self, text: str) -> None:
    """Prints a line that stays."""
    print(f"\r\033[K{text}" if sys.stdout.isatty() else text, flush=True)


def _end() -> str:
  return "" if sys.stdout.isatty() else "\n"
