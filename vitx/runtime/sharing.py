"""Shares results that are expensive to make, such as compiled programs, among a process's runs."""

import collections
import contextlib
import contextvars
import gc
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

import jax

from vitx.config.context import assigned

Made = TypeVar("Made")
# Programs occupy memory and memory maps, of which a process may have few. A run has 8 results.
MOST = 100
# The results by key, of which the last was used last; None outside `sharing`.
_results: contextvars.ContextVar[collections.OrderedDict | None] = contextvars.ContextVar(
  "results", default=None
)


@contextlib.contextmanager
def sharing() -> Iterator[None]:
  """Makes `once` keep its results until the end of the `with` block, or of one around it."""
  if _results.get() is not None:
    yield
    return
  with assigned(_results, collections.OrderedDict()):
    yield
  release()


def once(find_key: Callable[[], Hashable], make: Callable[[], Made]) -> Made:
  """Returns the result of `make`, or in `sharing` the result of the first call with an equal key.

  `find_key` is called only in `sharing`, and its result must determine that of `make`. Of more than
  `MOST` results, those that were not used for the longest time are given up.
  """
  results = _results.get()
  if results is None:
    return make()
  key = find_key()
  if key not in results:
    results[key] = make()
    if len(results) > MOST:
      for _ in range(MOST // 2):
        results.popitem(last=False)
      release()
  results.move_to_end(key)
  return results[key]


def release() -> None:
  """Frees the memory of programs that nothing uses any more."""
  jax.clear_caches()
  gc.collect()
