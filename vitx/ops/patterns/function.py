"""Patterns from plain functions, in the form that FlexAttention takes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Pattern
from vitx.ops.patterns.indices import Index


def _refuse(*operands: Any) -> Any:
  """Raises the error of a function that uses `b`."""
  raise ConfigError(
    "pattern: the mask function uses b, the number of the example, but a pattern has equal edges in"
    " all examples. Hide keys of single examples by key_mask (B, M), or give each example blocks of"
    " its own: apply jax.vmap to attention with patterns.GivenBlocks(indices, block)."
  )


# The argument `b` of mask functions: any operation on it, as an index too, raises. With a number
# in its place, every example would silently get the mask of one example.
_OPERATIONS = set(dir(int)) - set(dir(object)) | {"__getattr__", "__hash__", "__eq__", "__ne__"}
_OPERATIONS |= {"__lt__", "__le__", "__gt__", "__ge__"}
_EXAMPLE = type("Example", (), dict.fromkeys(_OPERATIONS, _refuse))()


@dataclasses.dataclass(frozen=True)
class MaskFunction(Pattern):
  """The edges that a function allows.

  Attributes:
    mask_mod: An elementwise function `(b, h, q_idx, k_idx) -> bool` on integer arrays of NumPy or
      JAX. It must not use b, because all examples have equal edges.
    heads: The number H of heads. It matters only if the function uses `h`.

  Raises:
    ConfigError: Where the edges are computed, if the function uses b.
  """

  mask_mod: Callable[[Any, Any, Any, Any], Any]
  heads: int = 1

  @property
  def is_fixed(self) -> bool:
    return False

  @property
  def head_period(self) -> int:
    if self.heads == 1:
      return 1
    head = np.zeros((2, 1, 1), np.int32)
    query, key = np.zeros((1, 3, 1), np.int32), np.zeros((1, 1, 5), np.int32)
    shape = np.shape(self._call(head, query, key))
    # The result has an axis of heads only if the function uses the head.
    return self.heads if len(shape) == 3 and shape[0] == 2 else 1

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    if any(isinstance(index, jax.core.Tracer) for index in (q, k, head)):
      return self.mask_mod(_EXAMPLE, head, q, k)
    return self._call(head, q, k)

  def _call(self, head: Any, q: Any, k: Any) -> np.ndarray:
    with jax.ensure_compile_time_eval():  # the function may be written with jax.numpy
      return np.asarray(self.mask_mod(_EXAMPLE, head, q, k), bool)
