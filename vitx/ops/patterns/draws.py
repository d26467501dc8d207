"""Random draws that are functions of integers, equal in NumPy and JAX, traced or not.

A random number is a hash of the integers, called words, that identify it (seed, step, layer, head,
query, key, ...). So a random graph needs no state, and its predicate stays elementwise.
"""

from typing import Any

import jax
import numpy as np

from vitx.ops.patterns.indices import Index, namespace

# The purposes of draws; each is the first word of its hashes.
BLOCKS, EDGES, REWIRE, TARGETS = range(4)


def hash_words(*words: Index) -> Any:
  """Hashes integers or integer arrays, which broadcast, to uniform and independent uint32 numbers.

  Each word, modulo 2^32, is mixed in as in MurmurHash3 (Appleby 2011). The finalizer follows every
  word, not only the last.
  """
  xp = namespace(*words)
  shape = np.broadcast_shapes(*(np.shape(word) for word in words))
  state = np.zeros(1, np.uint32)
  for word in words:
    array = word if isinstance(word, jax.Array) else np.asarray(word)
    # NumPy warns if a scalar overflows, but not if an array does.
    mixed = xp.atleast_1d(array.astype(np.uint32)) * np.uint32(0xCC9E2D51)
    mixed = ((mixed << np.uint32(15)) | (mixed >> np.uint32(17))) * np.uint32(0x1B873593)
    state = state ^ mixed
    state = (state << np.uint32(13)) | (state >> np.uint32(19))
    state = _finalize(state * np.uint32(5) + np.uint32(0xE6546B64))
  return state.reshape(shape)


def _finalize(x: Any) -> Any:
  x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
  x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
  return x ^ (x >> np.uint32(16))


def below(probability: float, *words: Index) -> Any:
  """Returns a boolean for each combination of words, True with the given probability.

  The words are the integers or integer arrays whose hash is the random number; they broadcast.
  """
  if probability >= 1:
    return hash_words(*words) >= np.uint32(0)
  return hash_words(*words) < np.uint32(probability * 2**32)


def subsets(sizes: Index, count: int, *words: Index) -> Any:
  """Draws `count` different numbers from 0 ... size-1, every subset equally likely.

  This is Floyd's algorithm (Bentley and Floyd 1987), which needs `count` draws for any size.

  Args:
    sizes: The sizes, integers of any shape.
    count: The number r of draws.
    *words: The words, integers that identify each draw; they broadcast with `sizes`.

  Returns:
    The numbers, int32 (..., r). If a size is less than r, they are 0 ... size-1 and then -1.
  """
  xp = namespace(sizes, *words)
  drawn: list[Any] = []
  for step in range(count):
    top = xp.asarray(sizes) - count + step  # the largest number that this step may draw
    bits = hash_words(*words, step)
    pick = (bits % xp.maximum(top + 1, 1).astype(np.uint32)).astype(np.int32)
    is_taken = xp.zeros_like(pick, dtype=bool)
    for earlier in drawn:
      is_taken = is_taken | (earlier == pick)
    pick = xp.where(is_taken, top, pick)
    drawn.append(xp.where(top >= 0, pick, -1).astype(np.int32))
  return xp.stack(drawn, axis=-1)


def skip_excluded(ranks: Index, excluded: Index) -> Any:
  """Returns the numbers of given ranks in the sequence 0, 1, 2, ... without the excluded numbers.

  Args:
    ranks: The ranks from 0, int (..., r); the result for -1 is -1.
    excluded: The excluded numbers, int (..., x), ascending, without repeats. Some may be larger
      than any result.
  """
  xp = namespace(ranks, excluded)
  value = ranks
  for column in range(excluded.shape[-1]):
    value = value + (value >= excluded[..., column, None]).astype(np.int32)
  return xp.where(ranks < 0, -1, value).astype(np.int32)
