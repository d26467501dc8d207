"""Dropout with random bits that depend on the example and not on the device.

The random bits for example i of a global batch depend on (key, i) alone, so that one device with B
examples draws the same bits as two devices with B/2 examples each. The training step declares with
`examples_at` which examples a device has. Without a declaration, examples count from zero.
"""

import contextvars
from collections.abc import Sequence
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp

from vitx.config.context import assigned
from vitx.ops.shapes import Array, Float, Int

_index: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("examples", default=None)


def examples_at(index: Int[Array, " B"]) -> AbstractContextManager[None]:
  """Declares, for code traced in a `with` block, which examples of the global batch it computes.

  Args:
    index: The index in the global batch of each row of the local batch, integers (B,).
  """
  return assigned(_index, index)


def example_keys(key: jax.Array, batch: int) -> jax.Array:
  """Returns one key per example, (B,), folded from `key` and the example's global index.

  The enclosing context `examples_at` gives these indices. Outside such a context they are
  0 ... B - 1.
  """
  index = _index.get()
  index = jnp.arange(batch) if index is None else index
  if index.shape != (batch,):
    raise ValueError(
      f"examples_at got an index of shape {index.shape}; a batch of {batch} needs ({batch},)."
    )
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)


def dropout(
  x: Float[Array, "B ..."], rate: float, key: jax.Array, broadcast: Sequence[int] = ()
) -> Float[Array, "B ..."]:
  """Zeroes entries of `x` (B, ...) with probability `rate` and scales the rest by 1 / (1 - rate).

  Args:
    x: An array (B, ...) whose leading axis is the examples.
    rate: The probability of a zero, in [0, 1).
    key: A key that is equal on every device. Each example's index is folded into it.
    broadcast: The axes along which entries share one draw, never axis 0. If these are all other
      axes, the function is stochastic depth.
  """
  if not 0 <= rate < 1:
    raise ValueError(f"The dropout rate {rate} must be in [0, 1).")
  if rate == 0:
    return x
  shape = tuple(1 if axis in broadcast else n for axis, n in enumerate(x.shape))[1:]
  keys = example_keys(key, x.shape[0])
  keep = jax.vmap(lambda k: jax.random.bernoulli(k, 1 - rate, shape))(keys)
  return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))
