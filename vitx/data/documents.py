"""Documents, which are long sequences of bytes: reading, caching, and dividing them."""

import functools
import threading
from collections.abc import Callable

import numpy as np

from vitx.data.dataset import ArraySpec, Example, Examples

VOCABULARY = 256
SPEC = {"tokens": ArraySpec((None,), "uint8")}
# Each split caches this many bytes of documents, so that not every window reads its document again.
CACHE_SIZE = 2**30


class Documents:
  """Documents that are read on access, with a cache of the most recently used ones.

  Args:
    read: A function from a document's number to its tokens, uint8 (n,); called from several
      threads.
    lengths: A function that returns the number of tokens of each document, int64 (count,); called
      at the first use.
    name: A function from a document's number to its name.
    cache_size: The size of the cache in bytes; 0 for documents that cost nothing to read.
  """

  labels = None

  def __init__(
    self,
    read: Callable[[int], np.ndarray],
    lengths: Callable[[], np.ndarray],
    name: Callable[[int], str],
    *,
    cache_size: int = CACHE_SIZE,
  ):
    self._read = read
    self._find_lengths = lengths
    self.name = name
    self._capacity = cache_size
    self._size = 0  # bytes
    self._cache: dict[int, np.ndarray] = {}  # in the order of their last use
    self._lock = threading.Lock()

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """Returns the number of tokens of each document, int64 (count,)."""
    return np.asarray(self._find_lengths(), np.int64)

  def __len__(self) -> int:
    return len(self.lengths)

  def __getitem__(self, i: int) -> Example:
    """Returns the tokens of a document, uint8 (n,)."""
    with self._lock:
      if i in self._cache:
        self._cache[i] = self._cache.pop(i)
        return {"tokens": self._cache[i]}
    tokens = self._read(i)
    with self._lock:
      if i not in self._cache and tokens.nbytes <= self._capacity:
        self._cache[i] = tokens
        self._size += tokens.nbytes
      while self._size > self._capacity:
        self._size -= self._cache.pop(next(iter(self._cache))).nbytes
    return {"tokens": tokens}


class Span:
  """The part between two positions of the concatenation of several documents.

  The first and the last document of the part may be cut. Documents outside the part are left out.

  Args:
    parent: The documents.
    choose: A function that returns the positions (start, stop) in the concatenated documents; it is
      called at the first use.
  """

  labels = None

  def __init__(self, parent: Examples, choose: Callable[[], tuple[int, int]]):
    # A span of a span refers to the documents themselves, so that names show the place in a
    # document.
    self._outer = parent if isinstance(parent, Span) else None
    self._parent: Examples = parent if self._outer is None else self._outer._parent
    self._choose = choose

  @functools.cached_property
  def _bounds(self) -> tuple[int, int]:
    """Returns the positions (start, stop) of the part in the concatenated documents."""
    start, stop = self._choose()
    low, high = (0, int(find_lengths(self._parent).sum()))
    if self._outer is not None:
      low, high = self._outer._bounds
    return max(low, low + start), min(high, low + stop)

  @functools.cached_property
  def _pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the index, start, stop and uncut length of each document in the part, (n,) each."""
    start, stop = self._bounds
    whole = find_lengths(self._parent)
    ends = np.cumsum(whole)
    low = np.clip(start - (ends - whole), 0, whole)
    high = np.clip(stop - (ends - whole), 0, whole)
    documents = np.flatnonzero(low < high)
    return documents, low[documents], high[documents], whole[documents]

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """Returns the number of tokens of each document within the part, int64 (count,)."""
    _, low, high, _ = self._pieces
    return high - low

  def __len__(self) -> int:
    return len(self._pieces[0])

  def __getitem__(self, i: int) -> Example:
    """Returns the tokens of a document within the part, uint8 (n,)."""
    which, low, high, _ = (int(values[i]) for values in self._pieces)
    return {"tokens": self._parent[which]["tokens"][low:high]}

  def name(self, i: int) -> str:
    """Returns the document's name, followed by the range [start:stop] if the document is cut."""
    which, low, high, whole = (int(values[i]) for values in self._pieces)
    name = self._parent.name(which)
    return name if high - low == whole else f"{name}[{low}:{high}]"


def find_lengths(documents: Examples) -> np.ndarray:
  """Returns the number of tokens of each document, int64 (count,).

  Reads the documents if they have no attribute `lengths`.
  """
  known = getattr(documents, "lengths", None)
  if known is not None:
    return np.asarray(known, np.int64)
  return np.array([len(documents[i]["tokens"]) for i in range(len(documents))], np.int64)


def carve_end(documents: Examples, share: float) -> tuple[Span, Span]:
  """Cuts a share off the end of the concatenated documents, as validation or test data.

  Neighboring parts of a text are similar, so a share drawn from scattered places could be predicted
  from its neighbors. Both parts have at least one token.

  Args:
    documents: The examples, with `tokens` (n,).
    share: The share of the tokens, between 0 and 1.

  Returns:
    The documents of the rest, and the documents of the share.
  """

  @functools.cache
  def place() -> tuple[int, int]:
    """Returns the positions (start, stop) of the share."""
    total = int(find_lengths(documents).sum())
    return total - min(max(round(total * share), 1), total - 1), total

  return Span(documents, lambda: (0, place()[0])), Span(documents, place)
