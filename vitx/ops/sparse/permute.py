"""Reordering of tokens, without a gather if the order is a transposition."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Pattern
from vitx.ops.patterns.grid import Near, Patches
from vitx.ops.patterns.indices import distinct
from vitx.ops.patterns.parts import Order


def permute(x: jax.Array, order: Order) -> jax.Array:
  """Brings tokens into an order.

  Args:
    x: An array (B, N, ...).
    order: The order of the N tokens.

  Returns:
    The reordered array (B, N', ...), with zeros at the places of padding.
  """
  padding = order.numbers.size - order.length
  if padding:
    x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
  if order.axes is None:
    return _take(x, order, False)
  shape, axes = order.axes
  return _transpose(x, shape, axes)


def restore(x: jax.Array, order: Order) -> jax.Array:
  """Undoes `permute`: (B, N', ...) -> (B, N, ...)."""
  if order.axes is None:
    return _take(x, order, True)[:, : order.length]
  shape, axes = order.axes
  back = tuple(int(axis) for axis in np.argsort(axes))
  return _transpose(x, tuple(shape[axis] for axis in axes), back)[:, : order.length]


def _transpose(x: jax.Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> jax.Array:
  split = x.reshape(x.shape[0], *shape, *x.shape[2:])
  rest = range(1 + len(shape), split.ndim)
  return split.transpose(0, *(1 + axis for axis in axes), *rest).reshape(x.shape)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _take(x: jax.Array, order: Order, back: bool) -> jax.Array:
  numbers = order.places if back else order.numbers
  return x.at[:, numbers].get(mode="promise_in_bounds", unique_indices=True)


# The gradient of a gather is a scatter, but that of a permutation is the inverse gather.
_take.defvjp(
  lambda x, order, back: (_take(x, order, back), None),
  lambda order, back, _, cotangent: (_take(cotangent, order, not back),),
)


def in_order(
  pattern: Pattern, layout: TokenLayout, order: Order | None
) -> tuple[Pattern, TokenLayout]:
  """Returns a pattern for tokens in an order, and their layout; `None` is the usual order."""
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

  def allows(self, layout, q, k, head=0):
    N, (q, k) = self.order.length, (self.order.numbers[index] for index in (q, k))
    inside = (q < N) & (k < N)
    q, k = np.minimum(q, N - 1), np.minimum(k, N - 1)
    return inside & self.pattern.allows(self.layout, q, k, head)

  def candidates(self, layout, first, last, block, head):
    order, pattern = self.order, self.pattern
    if isinstance(order, Patches) and isinstance(pattern, Near) and block == order.tokens:
      return pattern.patches_near(self.layout, order.sides, first // block)
    tokens = self.order.numbers[first : last + 1]
    tokens = np.sort(tokens[tokens < self.order.length])
    if not tokens.size:
      return np.arange(0)
    breaks = np.flatnonzero(np.diff(tokens) != 1) + 1
    found = []
    for run in np.split(tokens, breaks):  # the candidates of a run are blocks of its length
      width = run.size
      keys = self.pattern.candidates(self.layout, int(run[0]), int(run[-1]), width, head)
      if keys is None:
        return None
      found.append((keys[:, None] * width + np.arange(width)).ravel())
    keys = distinct(found)
    return np.unique(self.order.places[keys[keys < self.order.length]] // block)
