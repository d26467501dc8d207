"""The order of examples: a pure function of (seed, epoch), whatever the version of NumPy.

Training reads the endless concatenation of one permutation per epoch. Batch `step` of global size B
is its positions step*B ... step*B + B-1, so no example is dropped and nothing has to be remembered.
Only raw bits of the Philox generator are used: NumPy promises those, not the algorithms above them.
"""

import functools

import numpy as np

# Which decision a stream of random bits belongs to; part of the generator's key.
ORDER, TRANSFORM, TEST, VALIDATION, FRACTION, STATISTICS = range(6)
_WORD = 2**64 - 1


def generator(seed: int, stream: int, *counter: int) -> np.random.Philox:
  """Returns the bit generator for one decision; `counter` holds up to three integers.

  The lowest word of Philox's counter stays zero: it counts the bits drawn.
  """
  words = [0, *counter, *[0] * (3 - len(counter))]
  return np.random.Philox(
    key=np.array([seed & _WORD, stream], np.uint64), counter=np.array(words, np.uint64)
  )


def uniform(bits: np.random.Philox, count: int) -> np.ndarray:
  """Draws `count` float64 from [0, 1): the upper 53 bits of each word."""
  return (bits.random_raw(count) >> np.uint64(11)) * 2.0**-53


def shuffle(seed: int, stream: int, epoch: int, count: int) -> np.ndarray:
  """Returns a permutation of 0 ... count-1, int64."""
  return np.argsort(generator(seed, stream, epoch).random_raw(count), kind="stable")


@functools.lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, count: int) -> np.ndarray:
  """Returns the order of one epoch; the last few are kept (a batch may span two epochs)."""
  result = shuffle(seed, ORDER, epoch, count)
  result.flags.writeable = False
  return result


def example_at(seed: int, positions: np.ndarray | int, count: int, repeats: int = 1) -> np.ndarray:
  """Returns which of `count` examples stand at `positions` of the endless training order.

  Args:
    seed: the data seed.
    positions: integers >= 0, any shape.
    count: number of examples in an epoch.
    repeats: how often each comes in a row. An epoch is as long as ever, so that only its first
      `count / repeats` examples come (as DeiT's sampler has it).
  """
  positions = np.asarray(positions, np.int64)
  epochs, offsets = np.divmod(positions, count)
  first, last = int(epochs.min()), int(epochs.max())
  if first == last:
    return permutation(seed, first, count)[offsets // repeats]
  result = np.empty_like(positions)
  for epoch in range(first, last + 1):
    here = epochs == epoch
    result[here] = permutation(seed, epoch, count)[offsets[here] // repeats]
  return result


def places(rows: np.ndarray, batch_size: int, repeats: int) -> np.ndarray:
  """Returns which place of a batch's part of the order each of its rows has.

  Rows have the places 0, 1, 2, ... in turn; with repeats 0, B - 1, 1, B - 2, ... Neighbors, which
  mixing takes for partners, are then the places p and B - 1 - p, as where a batch is mixed with
  itself turned around, and hardly ever two copies of one example.

  Args:
    rows: of the global batch.
    batch_size: B, of the global batch.
    repeats: how often an example comes in a row.
  """
  if repeats == 1:
    return rows
  half = rows // 2
  return np.where(rows % 2, batch_size - 1 - half, half)
