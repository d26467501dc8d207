"""Means over the devices that share a batch, for layers that need the whole batch.

Layers do not know the axis of the devices. The training step, which is mapped over that axis,
declares it with `over`. Without a declaration, one device has the whole batch and `mean` returns
its argument.
"""

import contextvars
from contextlib import AbstractContextManager

import jax

from vitx.config.context import assigned

_axis: contextvars.ContextVar[str | None] = contextvars.ContextVar("replicas", default=None)


def over(axis: str | None) -> AbstractContextManager[None]:
  """Declares, for code traced in a `with` block, that a batch is spread over several devices.

  Args:
    axis: The name of the axis; `None` if one device has the whole batch.
  """
  return assigned(_axis, axis)


def mean(x: jax.Array) -> jax.Array:
  """Returns the mean of `x` over the devices; every device gets an equal result."""
  axis = _axis.get()
  return x if axis is None else jax.lax.pmean(x, axis)


def count() -> int:
  """Returns the number of devices that share a batch."""
  axis = _axis.get()
  return 1 if axis is None else jax.lax.axis_size(axis)
