"""Cuts documents into windows of N tokens: to score every token once, or randomly for training."""

import functools
from dataclasses import dataclass

import numpy as np

from vitx.config.errors import ConfigError
from vitx.data import order
from vitx.data.dataset import Example, Examples, find_part
from vitx.data.documents import find_lengths


class Windows:
  """The windows of documents, as examples; a window never spans two documents.

  A window scores a token if the prediction of the token counts in the result. An example has
  `tokens`, uint8 (size,), and `first`, int32 (), the position of the first token that the window
  scores. The windows of a document start `hop` tokens apart. Each window after the first scores
  only its last `hop` tokens, so that each of them is predicted from at least `size - hop` tokens.
  The last window ends at the document's end and scores only the tokens that no earlier window
  scores. So every token of every document is scored exactly once.

  Args:
    documents: The documents, with `tokens` (n,), n >= size.
    size: The number of tokens in a window.
    hop: The distance in tokens between the starts of two windows; None is `size`: no overlap.
    stretch: Whether examples are longer, for training: example i of a document has up to 2*size-1
      tokens, beginning with token i*size. `CropWindow` takes `size` of these tokens, so that every
      window of the document can be drawn.
  """

  labels = None

  def __init__(
    self, documents: Examples, size: int, *, hop: int | None = None, stretch: bool = False
  ):
    self._documents = documents
    self._size = size
    self._hop = size if stretch or hop is None else hop
    self._stretch = stretch

  @functools.cached_property
  def _lengths(self) -> np.ndarray:
    """Returns the number of tokens of each document, int64 (count,)."""
    lengths, size = find_lengths(self._documents), self._size
    if not len(lengths):
      raise ConfigError(
        "data.source: train, val or test has no documents. Change data.splits or data.validation."
      )
    short = np.flatnonzero(lengths < size)
    if len(short):
      raise ConfigError(
        f"task.window={size} is longer than {len(short)} documents, such as"
        f" {self._documents.name(int(short[0]))!r}. Set task.window to at most {lengths.min()}, or"
        " leave such documents out."
      )
    return lengths

  @functools.cached_property
  def _ends(self) -> np.ndarray:
    """Returns the number of windows up to the end of each document, int64 (count,)."""
    if self._stretch:
      return np.cumsum(self._lengths // self._size)
    return np.cumsum(1 - (self._size - self._lengths) // self._hop)

  def __len__(self) -> int:
    return int(self._ends[-1])

  def __getitem__(self, i: int) -> Example:
    """Returns one window: its tokens, and `first`, the position of the first token that it scores.

    `tokens` is uint8 (size,) or, with `stretch`, up to 2*size-1 tokens.
    """
    document, start, stop, first = self._place(i)
    tokens = np.array(self._documents[document]["tokens"][start:stop])
    return {"tokens": tokens, "first": np.asarray(first, np.int32)}

  def name(self, i: int) -> str:
    """Returns the document's name, followed by the window's range [start:stop]."""
    document, start, stop, _ = self._place(i)
    return f"{self._documents.name(document)}[{start}:{stop}]"

  def _place(self, i: int) -> tuple[int, int, int, int]:
    """Returns the document of window `i`, its start and stop there, and its first scored token."""
    document, number = find_part(self._ends, i)
    length, size = int(self._lengths[document]), self._size
    start = number * self._hop
    if self._stretch:
      return document, start, min(start + 2 * size - 1, length), 0
    scored = start + size - self._hop if number else 0  # the end of the earlier windows
    start = min(start, length - size)
    return document, start, start + size, scored - start


@dataclass(frozen=True)
class CropWindow:
  """A transform that takes a window of `size` tokens at a random position, for training."""

  size: int

  draws = True

  def __call__(self, example: Example, bits: np.random.Philox | None = None) -> Example:
    """Returns the example with its tokens cropped, uint8 (size,)."""
    assert bits is not None
    tokens = example["tokens"]
    start = int(order.uniform(bits, 1)[0] * (len(tokens) - self.size + 1))
    return {**example, "tokens": tokens[start : start + self.size]}
