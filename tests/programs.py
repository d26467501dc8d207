"""Compiles programs once for all runs of a test process that can share them."""

import collections
import contextlib
from collections.abc import Iterator

from vitx.config.context import assigned
from vitx.runtime import sharing

_results: collections.OrderedDict = collections.OrderedDict()


@contextlib.contextmanager
def shared() -> Iterator[None]:
  """Lets runs share programs with the runs of all other such blocks, as in one sweep."""
  with assigned(sharing._results, _results):
    yield
