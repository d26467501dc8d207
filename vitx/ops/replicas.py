"""Means over the devices that share a batch, for layers that need the whole batch.

Layers know no device axis. The training step declares with `over` the axis that it is mapped over;
without it one device holds the whole batch and the means are the identity.
"""

import contextvars
from contextlib import AbstractContextManager

import jax

from vitx.ops.context import assigned

_axis: contextvars.ContextVar[str | None] = contextvars.ContextVar("replicas", default=None)


def over(axis: str | None) -> AbstractContextManager[None]:
  """Declares that a batch is spread over the devices of a mapped axis, while tracing inside.

  Args:
    axis: The name of the axis; `None` if one device holds the whole batch.
  """
  return assigned(_axis, axis)


def mean(x: jax.Array) -> jax.Array:
  """Returns the mean of `x` over the devices, equal on each."""
  axis = _axis.get()
  return x if axis is None else jax.lax.pmean(x, axis)


def count() -> int:
  """Returns the number of devices that share a batch."""
  axis = _axis.get()
  return 1 if axis is None else jax.lax.axis_size(axis)
