"""Which of many scores are the largest: a cut instead of a sorted list.

`jax.lax.top_k` orders what it finds, which costs a CPU more than all the attention that follows. To
know which keys stay it is enough to know where to cut: a value, and among equals a number. Both are
found by bisection, on the integers that order floats as their bits do, so that no score is moved.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.shapes import Array, Bool, Float, Int

SLICES = 8  # of a row, see `_slices`
INFINITE = 0x7F800001  # above the integer of infinity, see `_ordered`
LOWEST = float(np.finfo(np.float32).min)  # no score that counts lies below


class Cut(NamedTuple):
  """Where rows of scores are cut: what `is_kept` needs.

  Attributes:
    value: float32 (...,); what is larger is kept.
    place: int32 (...,); of what is equal, the entries up to this number are.
  """

  value: jax.Array
  place: jax.Array


def count_kept(share: float, total: int) -> int:
  """Returns ceil(share total), of the number that `share` was meant to be: 0.7 of 10 are 7."""
  return min(total, math.ceil(share * total - 1e-9))


def keep_first(
  scores: Float[Array, "... M"], budget: int
) -> tuple[Int[Array, "... K"], Bool[Array, "... K"]]:
  """Returns the places of the largest scores, the lower number first where they are equal.

  Args:
    scores: (..., M).
    budget: K, at most M.

  Returns:
    int32 indices (..., K), and bool (..., K), False for a score of -inf.
  """
  values, indices = jax.lax.top_k(scores, budget)
  return indices, values > -jnp.inf


def find_cut(scores: Float[Array, "... M"], budget: int) -> Cut:
  """Returns where to cut rows of scores so that what `keep_first` names is kept.

  Where the K-th and the next score differ, the cut lies half-way, so that scores computed anew with
  another rounding are cut in the same place.

  Args:
    scores: float32 (..., M); a zero must not be negative, which `jax.lax.top_k` ranks lower.
    budget: K, 1 ... M.
  """
  keys, end = _ordered(scores), scores.shape[-1] - 1
  low, count, larger = _bisect_values(keys, budget)
  tied = count > budget
  reached = keys >= low[..., None]
  least = jnp.maximum(-_largest(jnp.where(reached, -scores, -jnp.inf)), LOWEST)
  most = jnp.maximum(_largest(jnp.where(reached, -jnp.inf, scores)), LOWEST)
  middle = most + (least - most) / 2
  between = ~tied & (middle > most) & (middle < least)
  last = _bisect_places(keys == low[..., None], budget - larger, tied)
  every = ~tied | (least == LOWEST)  # of fewer scores than K that count, all are kept
  return Cut(jnp.where(between, middle, least), jnp.where(every, end, last))


def is_kept(scores: Float[Array, "... M"], cut: Cut) -> Bool[Array, "... M"]:
  """Returns bool (..., M), what a cut keeps of scores (..., M); never one of -inf."""
  value, place = cut.value[..., None], cut.place[..., None]
  return (scores > value) | ((scores == value) & (_places(scores) <= place))


def _places(scores: jax.Array) -> jax.Array:
  return jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)


def _slices(x: jax.Array, fill: float | bool) -> list[jax.Array]:
  """Cuts rows (..., M) into a few pieces (..., m) to be joined elementwise.

  XLA's own reductions over the last axis take a CPU ten times as long as elementwise work.
  """
  width = -(-x.shape[-1] // SLICES)
  padding = [(0, 0)] * (x.ndim - 1) + [(0, SLICES * width - x.shape[-1])]
  x = jnp.pad(x, padding, constant_values=fill)
  return [x[..., i * width : (i + 1) * width] for i in range(SLICES)]


def _count(mask: jax.Array) -> jax.Array:
  """Returns how many entries of bool (..., M) are True, int32 (...,)."""
  total = functools.reduce(jnp.add, (x.astype(jnp.float32) for x in _slices(mask, False)))
  return jnp.dot(total, jnp.ones(total.shape[-1], jnp.float32)).astype(jnp.int32)


def _largest(x: jax.Array) -> jax.Array:
  return jnp.max(functools.reduce(jnp.maximum, _slices(x, -jnp.inf)), axis=-1)


def _ordered(scores: jax.Array) -> jax.Array:
  """Returns int32 that are ordered as the floats are; 0.0 is 0."""
  bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
  return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _bisect_values(keys: jax.Array, budget: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the largest value that at least K keys reach, or a smaller one that exactly K reach.

  Args:
    keys: int32 (..., M).
    budget: K.

  Returns:
    int32 (...,) each: the value, how many reach it, and how many exceed it where that matters:
    where more than K reach it.
  """
  positive, negative = _count(keys > 0), _count(keys < 0)
  above, below = positive >= budget, keys.shape[-1] - negative < budget
  # Zeros, of which pruned scores are full, are settled at once; the others have one sign.
  low = jnp.where(above, 1, jnp.where(below, -INFINITE, 0)).astype(jnp.int32)
  high = jnp.where(above, INFINITE, jnp.where(below, 0, 1)).astype(jnp.int32)
  reach = jnp.where(above, positive, keys.shape[-1] - jnp.where(below, 0, negative))
  exceed = jnp.where(above, 0, jnp.where(below, keys.shape[-1] - negative, positive))

  def is_open(low, high, reach):
    return (reach != budget) & (high - low > 1)

  def halve(state):
    low, high, reach, exceed = state
    middle = low + (high - low) // 2
    count = _count(keys >= middle[..., None])
    up, open_ = count >= budget, is_open(low, high, reach)
    return (
      jnp.where(open_ & up, middle, low),
      jnp.where(open_ & ~up, middle, high),
      jnp.where(open_ & up, count, reach),
      jnp.where(open_ & ~up, count, exceed),
    )

  start = (low, high, reach.astype(jnp.int32), exceed.astype(jnp.int32))
  low, _, reach, exceed = jax.lax.while_loop(
    lambda state: jnp.any(is_open(*state[:3])), halve, start
  )
  return low, reach, exceed


def _bisect_places(equal: jax.Array, count: jax.Array, asked: jax.Array) -> jax.Array:
  """Returns the place at which the first `count` entries of `equal` end, where that is asked.

  Args:
    equal: bool (..., M).
    count: int32 (...,), at least 1 where asked.
    asked: bool (...,).
  """
  places, end = _places(equal), equal.shape[-1] - 1
  high = jnp.full(count.shape, end, jnp.int32)
  low = jnp.where(asked, -1, end - 1).astype(jnp.int32)

  def halve(state):
    low, high = state
    middle = low + (high - low) // 2
    enough = _count(equal & (places <= middle[..., None])) >= count
    open_ = high - low > 1
    return jnp.where(open_ & ~enough, middle, low), jnp.where(open_ & enough, middle, high)

  return jax.lax.while_loop(lambda s: jnp.any(s[1] - s[0] > 1), halve, (low, high))[1]
