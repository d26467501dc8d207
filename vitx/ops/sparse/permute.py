"""Reorders tokens, without a gather if the order is a transposition."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Pattern
from vitx.ops.patterns.indices import Blocks, Index, distinct
from vitx.ops.patterns.parts import Order
from vitx.ops.shapes import Array, Shaped


def permute(x: Shaped[Array, "B N ..."], order: Order) -> Shaped[Array, "B M ..."]:
  """Brings tokens into an order.

  Args:
    x: An array (B, N, ...).
    order: The order of the N tokens.

  Returns:
    The reordered array (B, M, ...), where M >= N counts the places of the order; places without a
    token, which pad the order, have zeros.
  """
  padding = order.numbers.size - order.length
  if padding:
    x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
  if order.axes is None:
    return _reorder(x, order, False)
  shape, axes = order.axes
  return _transpose(x, shape, axes)


def restore(x: Shaped[Array, "B M ..."], order: Order) -> Shaped[Array, "B N ..."]:
  """Undoes `permute`: maps (B, M, ...) to (B, N, ...), without the places of padding."""
  if order.axes is None:
    return _reorder(x, order, True)[:, : order.length]
  shape, axes = order.axes
  back = tuple(int(axis) for axis in np.argsort(axes))
  return _transpose(x, tuple(shape[axis] for axis in axes), back)[:, : order.length]


def attend_in_order(
  attend: Callable[..., tuple[jax.Array, jax.Array]],
  order: Order | None,
  q: Shaped[Array, "B N H D"],
  k: Shaped[Array, "B N H D"],
  v: Shaped[Array, "B N H E"],
  key_mask: Shaped[Array, "B N"] | None,
) -> tuple[Shaped[Array, "B N H E"], Shaped[Array, "B H N"]]:
  """Computes attention between reordered tokens, and returns the results in the usual order.

  Args:
    attend: A function (q, k, v, key_mask=...) that returns the output and the log-sum-exp for the
      reordered tokens.
    order: The new order of the N tokens; `None` for the usual one.
    q, k: The queries and the keys, (B, N, H, D).
    v: The values, (B, N, H, E).
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
  """
  if order is None:
    return attend(q, k, v, key_mask=key_mask)
  q, k, v = (permute(x, order) for x in (q, k, v))
  out, lse = attend(q, k, v, key_mask=None if key_mask is None else permute(key_mask, order))
  return restore(out, order), jnp.swapaxes(restore(jnp.swapaxes(lse, 1, 2), order), 1, 2)


def _transpose(x: jax.Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> jax.Array:
  split = x.reshape(x.shape[0], *shape, *x.shape[2:])
  rest = range(1 + len(shape), split.ndim)
  return split.transpose(0, *(1 + axis for axis in axes), *rest).reshape(x.shape)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _reorder(x: jax.Array, order: Order, back: bool) -> jax.Array:
  numbers = order.places if back else order.numbers
  return x.at[:, numbers].get(mode="promise_in_bounds", unique_indices=True)


# The gradient of a gather is a scatter, but that of a permutation is the inverse gather.
_reorder.defvjp(
  lambda x, order, back: (_reorder(x, order, back), None),
  lambda order, back, _, cotangent: (_reorder(cotangent, order, not back),),
)


def in_order(
  pattern: Pattern, layout: TokenLayout, order: Order | None
) -> tuple[Pattern, TokenLayout]:
  """Returns a pattern and a layout for tokens in a new order; the order `None` changes nothing."""
  if order is None:
    return pattern, layout
  return Permuted(pattern, layout, order), TokenLayout((order.numbers.size,))


@dataclasses.dataclass(frozen=True)
class Permuted(Pattern):
  """A pattern's edges between reordered tokens.

  Attributes:
    pattern: The pattern of the tokens in their usual order.
    layout: The layout of the N tokens in their usual order.
    order: The new order of the tokens.
  """

  pattern: Pattern
  layout: TokenLayout
  order: Order

  @property
  def is_fixed(self) -> bool:
    return self.pattern.is_fixed

  @property
  def head_period(self) -> int:
    return self.pattern.head_period

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    N, (q, k) = self.order.length, (self.order.numbers[index] for index in (q, k))
    inside = (q < N) & (k < N)
    q, k = np.minimum(q, N - 1), np.minimum(k, N - 1)
    return inside & self.pattern.allows(self.layout, q, k, head)

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    tokens = self.order.numbers[first : last + 1]
    tokens = np.sort(tokens[tokens < self.order.length])
    if not tokens.size:
      return np.arange(0)
    breaks = np.flatnonzero(np.diff(tokens) != 1) + 1
    tokens_of_runs = []
    for run in np.split(tokens, breaks):  # the candidates of a run are blocks of its length
      width = run.size
      keys = self.pattern.candidates(self.layout, int(run[0]), int(run[-1]), width, head)
      if keys is None:
        return None
      tokens_of_runs.append((keys[:, None] * width + np.arange(width)).ravel())
    keys = distinct(tokens_of_runs)
    return np.unique(self.order.places[keys[keys < self.order.length]] // block)
