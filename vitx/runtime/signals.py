"""Ends a run early, after a signal, where no work is half done."""

import atexit
import contextlib
import contextvars
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import jax

# EX_TEMPFAIL of sysexits.h: everything is saved, and the same command continues the run.
EXIT_INTERRUPTED = 75
POLL = 0.1  # seconds between two checks for a signal during work in a thread
AGAIN = 1.0  # seconds; an earlier second signal counts as the first one sent twice
# The signals that ask a run to end. Batch systems send SIGUSR1 or SIGUSR2 before a job's time ends.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
T = TypeVar("T")
_current: contextvars.ContextVar["StopRequest | None"] = contextvars.ContextVar(
  "request", default=None
)
LEFT_ALONE = "vitx work that a signal may break off"  # the name of threads of `start`
_received: list[int] = []  # the signals that `StopRequest` handled in this process


class Interrupted(BaseException):
  """The exception that ends a run after a signal, at a place where no work is half done.

  It is a `BaseException`, because code that reads damaged files catches every `Exception`.
  """


class StopRequest:
  """A context manager in which each of `SIGNALS` ends a run after the steps in progress.

  The first signal only sets a flag, which the training loop reads. During long work, such as an
  evaluation, the methods `check`, `watch` and `breakable` and the function `wait` raise Interrupted
  after the signal. With several processes they do not raise, since the other processes would wait
  for this one; instead, the next training step passes the signal on to them.

  A second signal ends the process at once, if it comes at least `AGAIN` seconds after the first. A
  sooner one is ignored, even after the `with` block, because schedulers deliver one signal twice.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
    """Begins without a signal; `clock` returns the time in seconds."""
    self.received: signal.Signals | None = None
    self._clock, self._since = clock, 0.0
    self._before: dict[signal.Signals, Any] = {}
    self._is_breakable = False

  def __enter__(self) -> "StopRequest":
    self._token = _current.set(self)
    # Python lets only the main thread set handlers.
    if threading.current_thread() is threading.main_thread():
      for number in SIGNALS:
        self._before[number] = signal.signal(number, self._handle)
    return self

  def __exit__(self, *exception: object) -> None:
    if self.received is None:  # otherwise the signal may come again before the process ends
      self._restore()
    _current.reset(self._token)

  def is_received(self) -> bool:
    """Returns whether a signal has come to this process."""
    return self.received is not None

  def check(self) -> None:
    """Raises Interrupted if a signal has come."""
    if self.received is not None and jax.process_count() == 1:
      raise Interrupted

  def watch(self, batches: Iterable[T]) -> Iterator[T]:
    """Yields `batches`, but raises Interrupted instead of the next one after a signal."""
    for batch in batches:
      self.check()
      yield batch

  @contextlib.contextmanager
  def breakable(self) -> Iterator[None]:
    """Lets a signal raise Interrupted anywhere in a `with` block.

    The block must change nothing that lasts, such as a file. It is meant for the tracing of
    functions, which takes minutes for deep networks.
    """
    self.check()
    self._is_breakable = True
    try:
      yield
    finally:
      self._is_breakable = False

  def _handle(self, number: int, frame: object) -> None:
    _received.append(number)
    if self.received is not None:
      if self._clock() - self._since >= AGAIN:
        self._restore()
        signal.raise_signal(number)
      return
    self._since, self.received = self._clock(), signal.Signals(number)
    print(
      f"\n{self.received.name}: the run saves its state after the steps in progress and ends;"
      " a second signal ends it at once",
      flush=True,
    )
    if self._is_breakable:
      self.check()

  def _restore(self) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
    self._before = {}


def start(work: Callable[[], T]) -> "Future[T]":
  """Calls `work` in another thread; the process waits for its end, unless `leave` ends it.

  Python handles signals only in the main thread and between two Python instructions, and XLA's
  compiler may take minutes to return.
  """
  result: Future[T] = Future()
  context = contextvars.copy_context()

  def body() -> None:
    try:
      result.set_result(context.run(work))
    except BaseException as error:
      result.set_exception(error)

  threading.Thread(target=body, daemon=True, name=LEFT_ALONE).start()
  return result


@atexit.register
def _join() -> None:
  """Waits for threads of `start`, since XLA crashes if the interpreter ends while it compiles."""
  for thread in threading.enumerate():
    if thread.name == LEFT_ALONE:
      thread.join()


def wait(result: "Future[T]") -> T:
  """Waits for work that `start` began; in a `StopRequest`, a signal abandons it."""
  request = _current.get()
  while True:
    with contextlib.suppress(TimeoutError):
      return result.result(POLL)
    if result.done():  # `work` ended just now, or raised a TimeoutError itself
      return result.result()
    if request is not None:
      request.check()


def count_received() -> int:
  """Returns the number of signals so far that asked a run of this process to end."""
  return len(_received)


def has_received(number: int) -> bool:
  """Returns whether a signal has asked a run of this process to end, also as a second one."""
  return number in _received


def leave(status: int) -> int:
  """Returns an exit status, or ends the process with it if an abandoned thread still runs.

  A normal end of the interpreter would crash, since it would destroy XLA while the thread uses it.
  """
  if any(thread.name == LEFT_ALONE for thread in threading.enumerate()):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
  return status
