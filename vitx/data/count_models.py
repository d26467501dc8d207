"""Models of sequences that only count: n-grams of bytes, and each position for itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# A discount where none can be estimated, since no n-gram was seen just once.
DISCOUNT = 0.5
_LARGEST = 2**63


@dataclass(frozen=True)
class _Counts:
  """How often each n-gram of one order occurs, sorted by its key.

  A key is the context's key times (V + 1), plus the token.

  Attributes:
    grams: (g,), keys, int64.
    counts: (g,), of each.
    contexts: (c,), keys of their contexts.
    totals: (c,), tokens that follow each.
    kinds: (c,), different tokens that follow each.
    discount: what is taken from each count, between 0 and 1.
  """

  grams: np.ndarray
  counts: np.ndarray
  contexts: np.ndarray
  totals: np.ndarray
  kinds: np.ndarray
  discount: float


def count_model_bits(
  train: Sequence[np.ndarray],
  test: Sequence[np.ndarray],
  vocabulary: int,
  orders: Sequence[int] = range(6),
) -> list[float]:
  """Returns the bits per token of n-gram models, by interpolated absolute discounting.

  The model of order k predicts a token from the k before it in its sequence: each count is lowered
  by a discount d, and what that frees is given to the model of order k-1; below order 0 all tokens
  are equally likely. d is n1 / (n1 + 2 n2), from the numbers of n-grams seen once and twice (Ney,
  Essen and Kneser 1994). Before its first token a sequence has starts, which are no token.

  Args:
    train: sequences that are counted, (n,) integers each, or an array (count, n).
    test: sequences that are predicted, with nothing learned from them.
    vocabulary: V; tokens are 0 ... V-1.
    orders: of the models, ascending from 0 without a gap.

  Returns:
    One figure per order.

  Raises:
    ValueError: no token, one outside the vocabulary, orders whose keys do not fit 64 bits.
  """
  if list(orders) != list(range(len(orders))):
    raise ValueError(f"orders must be 0, 1, ..., not {list(orders)}")
  if (vocabulary + 1) ** (len(orders) + 1) >= _LARGEST:
    raise ValueError(f"order {len(orders) - 1} over {vocabulary} tokens does not fit 64 bits")
  base = vocabulary + 1
  seen = _keys(_check(train, vocabulary), base, len(orders))
  asked = _keys(_check(test, vocabulary), base, len(orders))
  bits = []
  probability = np.array(1 / vocabulary)
  for grams, wanted in zip(seen, asked, strict=True):
    probability = _interpolate(_count(grams, base), wanted, base, probability)
    bits.append(float(-np.log2(probability).mean()))
  return bits


def _check(sequences: Sequence[np.ndarray], vocabulary: int) -> list[np.ndarray]:
  arrays = [np.asarray(each) for each in sequences]
  arrays = [each for each in arrays if len(each)]
  if not arrays:
    raise ValueError("there are no tokens")
  low, high = min(int(a.min()) for a in arrays), max(int(a.max()) for a in arrays)
  if low < 0 or high >= vocabulary:
    raise ValueError(f"tokens {low} ... {high} are not all in 0 ... {vocabulary - 1}")
  return arrays


def _keys(sequences: list[np.ndarray], base: int, orders: int) -> Iterator[np.ndarray]:
  """Yields for each order the key of the n-gram that ends at each token, (tokens,) int64."""
  tokens = np.concatenate(sequences).astype(np.int64)
  lengths = np.array([len(each) for each in sequences])
  # The place of each token in its own sequence.
  place = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
  context = np.zeros_like(tokens)
  for order in range(orders):
    if order:
      before = np.concatenate([np.full(order, base - 1), tokens])[: len(tokens)]
      before[place < order] = base - 1  # a start, which is no token
      context = context + before * base ** (order - 1)
    yield context * base + tokens


def _count(grams: np.ndarray, base: int) -> _Counts:
  unique, counts = np.unique(grams, return_counts=True)
  contexts, starts, kinds = np.unique(unique // base, return_index=True, return_counts=True)
  once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
  discount = once / (once + 2 * twice) if once else DISCOUNT
  return _Counts(unique, counts, contexts, np.add.reduceat(counts, starts), kinds, discount)


def _interpolate(counts: _Counts, grams: np.ndarray, base: int, lower: np.ndarray) -> np.ndarray:
  """Returns the probability of each token, (tokens,), from that of the next lower order."""
  unique, inverse = np.unique(grams, return_inverse=True)  # sorted: looked up many times faster
  count = _look_up(counts.grams, counts.counts, unique)
  total = _look_up(counts.contexts, counts.totals, unique // base)
  kinds = _look_up(counts.contexts, counts.kinds, unique // base)
  known = total > 0
  total = np.maximum(total, 1)
  own = np.maximum(count - counts.discount, 0) / total
  free = np.where(known, counts.discount * kinds / total, 1.0)
  return own[inverse] + free[inverse] * lower


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
  """Returns the value of each wanted key, 0 for those that are not among the sorted keys."""
  places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
  return np.where(keys[places] == wanted, values[places], 0)


def per_position_bits(train: np.ndarray, test: np.ndarray, vocabulary: int) -> float:
  """Returns the bits per token of a model that predicts each position by itself.

  A token is as probable as it was frequent there in train; 1/2 is added to each count.

  Args:
    train: (n, N) integers in 0 ... V-1.
    test: (m, N).
    vocabulary: V.
  """
  places = np.arange(train.shape[1]) * vocabulary
  counts = np.bincount((train + places).ravel(), minlength=train.shape[1] * vocabulary)
  probability = (counts + 0.5) / (len(train) + 0.5 * vocabulary)
  return float(-np.log2(probability)[test + places].mean())
