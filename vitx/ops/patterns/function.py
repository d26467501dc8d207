"""Patterns from plain functions, in the form that FlexAttention takes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Pattern
from vitx.ops.patterns.indices import Index


@dataclasses.dataclass(frozen=True)
class MaskFunction(Pattern):
  """The edges that a function allows.

  Attributes:
    mask_mod: An elementwise function `(b, h, q_idx, k_idx) -> bool` on integer arrays of NumPy or
      JAX. The argument b is always 0, because all examples have equal edges.
    heads: The number H of heads. It matters only if the function uses `h`.
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
    found = np.shape(self._call(head, query, key))
    # The result has an axis of heads only if the function uses the head.
    return self.heads if len(found) == 3 and found[0] == 2 else 1

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    if any(isinstance(index, jax.core.Tracer) for index in (q, k, head)):
      return self.mask_mod(0, head, q, k)
    return self._call(head, q, k)

  def _call(self, head: Any, q: Any, k: Any) -> np.ndarray:
    with jax.ensure_compile_time_eval():  # the function may be written with jax.numpy
      return np.asarray(self.mask_mod(0, head, q, k), bool)
