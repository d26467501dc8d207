"""Selects the largest scores of each row by a threshold instead of a sort.

`jax.lax.top_k` sorts the scores that it selects, which costs a CPU more than all the attention that
follows. A mask of the kept keys needs only a `Cut` of each row: a threshold, and the last place at
which a score equal to the threshold is kept. Bisection finds both without moving a score. It works
on integers that are made from the bits of the floats and have their order.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.shapes import Array, Bool, Float, Int

SLICES = 8  # pieces of a row, see `_slices`
INFINITE = 0x7F800001  # one more than the integer that `_ordered` gives for infinity
LOWEST = float(np.finfo(np.float32).min)  # the lowest valid score


class Cut(NamedTuple):
  """A threshold for each row of scores, which `is_kept` applies.

  Attributes:
    value: The threshold of each row, float32 (...,); larger scores are kept.
    place: The last place at which a score equal to the threshold is kept, int32 (...,).
  """

  value: jax.Array
  place: jax.Array


def count_kept(share: float, total: int) -> int:
  """Returns ceil(share * total), corrected for float rounding: a share of 0.07 of 100 gives 7.

  The result is at least 1, since the share is positive, and at most `total`.
  """
  return min(total, max(1, math.ceil(share * total - 1e-9)))


def keep_first(
  scores: Float[Array, "... M"], budget: int
) -> tuple[Int[Array, "... K"], Bool[Array, "... K"]]:
  """Returns the places of the largest scores in each row; of equal scores, the first ones.

  Args:
    scores: The scores, (..., M).
    budget: The number K of places, at most M.

  Returns:
    The places, int32 (..., K), and bool (..., K), False for a score of -inf.
  """
  values, indices = jax.lax.top_k(scores, budget)
  return indices, values > -jnp.inf


def find_cut(scores: Float[Array, "... M"], budget: int) -> Cut:
  """Finds the threshold of each row that keeps the entries which `keep_first` selects.

  If the K-th and the next largest score differ, the threshold is half-way between them, so that it
  separates them even if they are recomputed with other rounding.

  Args:
    scores: The scores, float32 (..., M), without negative zeros, which `jax.lax.top_k` ranks below
      zeros.
    budget: The number K of entries to keep, 1 ... M.
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
  every = ~tied | (least == LOWEST)  # if fewer than K scores are valid, all are kept
  return Cut(jnp.where(between, middle, least), jnp.where(every, end, last))


def is_kept(scores: Float[Array, "... M"], cut: Cut) -> Bool[Array, "... M"]:
  """Returns a mask of the scores (..., M) that a cut keeps, bool (..., M); False for -inf."""
  value, place = cut.value[..., None], cut.place[..., None]
  return (scores > value) | ((scores == value) & (_places(scores) <= place))


def _places(scores: jax.Array) -> jax.Array:
  return jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)


def _slices(x: jax.Array, fill: float | bool) -> list[jax.Array]:
  """Cuts rows (..., M), padded with `fill`, into `SLICES` pieces (..., m).

  Reductions combine the pieces elementwise first, since XLA's own reductions over the last axis
  take a CPU ten times as long as elementwise work.
  """
  width = -(-x.shape[-1] // SLICES)
  padding = [(0, 0)] * (x.ndim - 1) + [(0, SLICES * width - x.shape[-1])]
  x = jnp.pad(x, padding, constant_values=fill)
  return [x[..., i * width : (i + 1) * width] for i in range(SLICES)]


def _count(mask: jax.Array) -> jax.Array:
  """Returns the number of True entries of bool (..., M), int32 (...,)."""
  total = functools.reduce(jnp.add, (x.astype(jnp.float32) for x in _slices(mask, False)))
  return jnp.dot(total, jnp.ones(total.shape[-1], jnp.float32)).astype(jnp.int32)


def _largest(x: jax.Array) -> jax.Array:
  return jnp.max(functools.reduce(jnp.maximum, _slices(x, -jnp.inf)), axis=-1)


def _ordered(scores: jax.Array) -> jax.Array:
  """Returns floats as int32 numbers that have the order of the floats; 0.0 becomes 0."""
  bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
  return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _bisect_values(keys: jax.Array, budget: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the largest v such that at least K scores are >= v, or a lower v with exactly K.

  The keys are integers from `_ordered`, int32 (..., M). The results are int32 (...,): v, the number
  of scores >= v, and, valid only where the second is more than K, the number of scores > v.
  """
  positive, negative = _count(keys > 0), _count(keys < 0)
  above, below = positive >= budget, keys.shape[-1] - negative < budget
  # Zeros, frequent in pruned scores, are settled at once; other values have a known sign.
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


def _bisect_places(equal: jax.Array, count: jax.Array, needs_place: jax.Array) -> jax.Array:
  """Returns the place of the `count`-th True entry of `equal`; the last if not `needs_place`."""
  places, end = _places(equal), equal.shape[-1] - 1
  high = jnp.full(count.shape, end, jnp.int32)
  low = jnp.where(needs_place, -1, end - 1).astype(jnp.int32)

  def halve(state):
    low, high = state
    middle = low + (high - low) // 2
    enough = _count(equal & (places <= middle[..., None])) >= count
    open_ = high - low > 1
    return jnp.where(open_ & ~enough, middle, low), jnp.where(open_ & enough, middle, high)

  return jax.lax.while_loop(lambda s: jnp.any(s[1] - s[0] > 1), halve, (low, high))[1]
