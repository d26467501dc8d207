"""The order of examples, which is a pure function of (seed, epoch) in every version of NumPy.

Training reads an endless sequence, the concatenation of one permutation per epoch. Batch `step` of
global size B takes the positions step*B ... step*B + B-1, so no example is dropped and the order
needs no state. Only raw bits of the Philox generator are used, because NumPy guarantees these but
not the algorithms built on them.
"""

import functools

import numpy as np

# Each kind of random decision has its own stream of bits; its number is part of the generator's
# key.
ORDER, TRANSFORM, TEST, VALIDATION, FRACTION = range(5)
STATISTICS, FOLDS, SHOTS, CLASSES, MEMBERS, PARITY, CALIBRATION = range(5, 12)
_WORD = 2**64 - 1


def generator(seed: int, stream: int, *counter: int) -> np.random.Philox:
  """Returns a generator of the random bits for the decision that `stream` and `counter` identify.

  Args:
    seed: The data seed.
    stream: The number of the kind of decision, such as `TRANSFORM`.
    *counter: Up to three integers, such as an epoch. They fill the upper words of Philox's counter;
      the lowest word starts at zero, since the generator counts its draws there.
  """
  words = [0, *counter, *[0] * (3 - len(counter))]
  return np.random.Philox(
    key=np.array([seed & _WORD, stream], np.uint64), counter=np.array(words, np.uint64)
  )


def uniform(bits: np.random.Philox, count: int) -> np.ndarray:
  """Draws `count` float64 numbers in [0, 1), each from the upper 53 bits of a 64-bit word."""
  return (bits.random_raw(count) >> np.uint64(11)) * 2.0**-53


def shuffle(seed: int, stream: int, epoch: int, count: int) -> np.ndarray:
  """Returns a random permutation of 0 ... count-1, int64 (count,)."""
  return np.argsort(generator(seed, stream, epoch).random_raw(count), kind="stable")


@functools.lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, count: int) -> np.ndarray:
  """Returns the indices of the examples in the order of one epoch, int64 (count,).

  The last few orders are cached, because a batch may span two epochs.
  """
  result = shuffle(seed, ORDER, epoch, count)
  result.flags.writeable = False
  return result


def example_at(seed: int, positions: np.ndarray | int, count: int, repeats: int = 1) -> np.ndarray:
  """Returns the examples at given positions of the endless training order.

  Args:
    seed: The data seed.
    positions: Integers >= 0 of any shape.
    count: The number of examples in an epoch.
    repeats: The number of consecutive positions that one example takes. An epoch keeps its length,
      so it has only the first `count / repeats` examples of its permutation, as in DeiT's sampler.

  Returns:
    The indices of the examples, in the shape of `positions`.
  """
  positions = np.asarray(positions, np.int64)
  epochs, offsets = np.divmod(positions, count)
  result = np.empty_like(positions)
  for epoch in range(int(epochs.min()), int(epochs.max()) + 1):
    in_epoch = epochs == epoch
    result[in_epoch] = permutation(seed, epoch, count)[offsets[in_epoch] // repeats]
  return result


class BalancedOrder:
  """The endless training order in which all K classes are equally frequent.

  The order consists of groups of K positions; a group has one example of each class, in a random
  order. Each class goes through permutations of its own examples, so the examples of a small class
  come more often.

  Args:
    seed: The data seed.
    labels: The label of each example, (n,). A class without examples is not one of the K.
  """

  def __init__(self, seed: int, labels: np.ndarray):
    self._seed = seed
    self._members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    self._drawn = functools.lru_cache(maxsize=4 * len(self._members))(self._draw)

  def example_at(self, positions: np.ndarray, repeats: int = 1) -> np.ndarray:
    """Returns the indices of the examples at given positions of the order, int64 (m,).

    Args:
      positions: Integers >= 0, (m,).
      repeats: The number of consecutive positions that one example takes.
    """
    cycles, slots = np.divmod(np.asarray(positions, np.int64) // repeats, len(self._members))
    result = np.empty_like(slots)
    for cycle in np.unique(cycles).tolist():
      in_cycle = np.flatnonzero(cycles == cycle)
      classes = shuffle(self._seed, CLASSES, cycle, len(self._members))[slots[in_cycle]]
      for place, label in zip(in_cycle.tolist(), classes.tolist(), strict=True):
        epoch, offset = divmod(cycle, len(self._members[label]))
        result[place] = self._drawn(label, epoch)[offset]
    return result

  def _draw(self, label: int, epoch: int) -> np.ndarray:
    """Returns the indices of one class's examples in the random order of one pass over them."""
    members = self._members[label]
    bits = generator(self._seed, MEMBERS, epoch, label)
    return members[np.argsort(bits.random_raw(len(members)), kind="stable")]


def places(rows: np.ndarray, batch_size: int, repeats: int) -> np.ndarray:
  """Returns, for each row of a batch, its position in the training order.

  Positions count from the first position of the batch. Without repeats, row i has position i. With
  repeats, the copies of an example have neighboring positions, and mixup, which mixes the rows 2p
  and 2p + 1, should not mix copies. So the rows 0, 1, 2, 3, ... have the positions 0, B-1, 1, B-2,
  ...: the rows 2p and 2p + 1 have the positions p and B-1-p.

  Args:
    rows: The row numbers in the global batch.
    batch_size: The size B of the global batch.
    repeats: The number of consecutive positions that one example takes.

  Returns:
    The positions, in 0 ... B-1, in the shape of `rows`.
  """
  if repeats == 1:
    return rows
  half = rows // 2
  return np.where(rows % 2, batch_size - 1 - half, half)
