"""Bits per token of simple models that count tokens, as reference values for density models."""

from collections.abc import Iterator, Sequence

import numpy as np

ORDERS = 6  # the number of models, of the orders 0 ... 5
# The discount d. A value estimated from the counts gives worse models, which are easier to beat.
DISCOUNT = 0.75


def count_model_bits(
  train: Sequence[np.ndarray], test: Sequence[np.ndarray], vocabulary: int
) -> list[float]:
  """Returns the bits per token of n-gram models, by interpolated absolute discounting.

  The model of order k predicts a token from the k tokens before it in its sequence. A discount d,
  `DISCOUNT`, is subtracted from each count of the model. The probability that this frees is
  distributed by the model of order k-1; below order 0 all tokens are equally likely. A sequence is
  padded at its beginning with a start symbol, which is not a token.

  Args:
    train: The sequences from which the models count, (n,) integers each, or an array (count, n).
    test: The sequences to predict; the models do not learn from them.
    vocabulary: The number of tokens V <= 256; tokens are 0 ... V-1.

  Returns:
    The bits per token of test under the models of the orders 0 ... `ORDERS`-1.
  """
  base = vocabulary + 1
  train_keys, test_keys = (_keys(sequences, base) for sequences in (train, test))
  bits = []
  probability = np.array(1 / vocabulary)
  for train_grams, test_grams in zip(train_keys, test_keys, strict=True):
    probability = _interpolate(train_grams, test_grams, base, probability)
    bits.append(float(-np.log2(probability).mean()))
  return bits


def _keys(sequences: Sequence[np.ndarray], base: int) -> Iterator[np.ndarray]:
  """Yields, for each order, an integer key of the n-gram that ends at each token, int64 (tokens,).

  The key of an n-gram is its last token plus `base`, the number of symbols, times the key of its
  context.
  """
  tokens = np.concatenate(sequences).astype(np.int64)
  if tokens.min() < 0 or tokens.max() >= base - 1:
    raise ValueError(f"The tokens are not all in 0 ... {base - 2}. Raise vocabulary.")
  lengths = np.array([len(sequence) for sequence in sequences])
  # The position of each token in its own sequence.
  place = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
  context = np.zeros_like(tokens)
  for order in range(ORDERS):
    if order:
      before = np.concatenate([np.full(order, base - 1), tokens])[: len(tokens)]
      before[place < order] = base - 1  # the start symbol
      context = context + before * base ** (order - 1)
    yield context * base + tokens


def _interpolate(train: np.ndarray, test: np.ndarray, base: int, lower: np.ndarray) -> np.ndarray:
  """Returns the probability that the model of one order gives each token, (tokens,).

  `train` and `test` are keys of n-grams, `base` is V + 1, and `lower` has the probabilities of the
  model of the next lower order, (tokens,).
  """
  grams, counts = np.unique(train, return_counts=True)
  contexts, starts, kinds = np.unique(grams // base, return_index=True, return_counts=True)
  unique, inverse = np.unique(test, return_inverse=True)  # sorted keys are looked up faster
  count = _look_up(grams, counts, unique)
  total = _look_up(contexts, np.add.reduceat(counts, starts), unique // base)
  kind = _look_up(contexts, kinds, unique // base)
  discounted = np.maximum(count - DISCOUNT, 0) / np.maximum(total, 1)
  free = np.where(total > 0, DISCOUNT * kind / np.maximum(total, 1), 1.0)
  return discounted[inverse] + free[inverse] * lower


def _look_up(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
  """Returns the value of each key in `queries`, or 0 if the sorted `keys` do not have it."""
  places = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
  return np.where(keys[places] == queries, values[places], 0)


def per_position_bits(train: np.ndarray, test: np.ndarray, vocabulary: int) -> float:
  """Returns the bits per token of a model that predicts each position independently.

  The probability of a token is its frequency at the position in the training sequences, with 1/2
  added to each count.

  Args:
    train: The training sequences, (n, N) integers in 0 ... V-1.
    test: The test sequences, (m, N).
    vocabulary: The number of tokens V.
  """
  places = np.arange(train.shape[1]) * vocabulary
  counts = np.bincount((train + places).ravel(), minlength=train.shape[1] * vocabulary)
  probability = (counts + 0.5) / (len(train) + 0.5 * vocabulary)
  return float(-np.log2(probability)[test + places].mean())
