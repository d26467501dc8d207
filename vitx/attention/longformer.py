"""Longformer's attention."""

import math

import jax
import numpy as np

from vitx.attention.pattern import PatternAttention
from vitx.errors import ConfigError, listing
from vitx.layers.projections import to_heads
from vitx.ops.kernels import softmax
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import DilatedWindow, Global, Pattern

GLOBAL_PROJECTIONS = ("shared", "separate")


class LongformerAttention(PatternAttention):
  """A sliding window, dilated in some heads, and global tokens (Beltagy et al. 2020, section 3.1).

  Attributes:
    window: keys on each side of the query.
    dilation: step between keys, for each head; fewer than H repeat.
    global_tokens: tokens that are global beside the prefix, 0 ... N-1 with prefix tokens counted,
      negative ones from the end.
    global_projections: "shared", or "separate", as published: the queries of global tokens attend
      all keys by projections of their own (`query_global`, `key_global`, `value_global`, which
      start with the values of the local ones); the other queries read global keys by the local
      ones, in one softmax with their window.
    others: see `PatternAttention`.
  """

  window: int = 8
  dilation: tuple[int, ...] = (1,)
  global_tokens: tuple[int, ...] = ()
  global_projections: str = "shared"

  def pattern(self, layout: TokenLayout) -> Pattern:
    window = DilatedWindow(self.window, tuple(self.dilation))
    return window | Global(tokens=tuple(self.global_tokens)) if self.global_tokens else window

  def with_own_rows(self, x, layout, mask, train, out, matrix):
    if self.global_projections == "shared":
      return out, matrix
    rows = self._rows(layout)
    q, k, v = (self._global(name, x) for name in ("query", "key", "value"))
    scale = 1 / math.sqrt(q.shape[-1])
    q, k = self.positioned(q, k, layout, scale)
    if matrix is None:
      own = softmax.kernelized_attention(q[:, rows], k, v, key_mask=mask, scale=scale)
      return out.at[:, rows].set(own), None
    key = self.make_rng("dropout") if train and self.dropout else None
    attend = None if mask is None else mask[:, None, None, :]  # (B, 1, 1, N)
    own, probabilities = softmax.masked_attention(
      q[:, rows], k, v, mask=attend, scale=scale, dropout_rate=self.dropout, key=key
    )
    return out.at[:, rows].set(own), matrix.at[:, :, rows].set(probabilities)

  def _global(self, name: str, x: jax.Array) -> jax.Array:
    """A projection of its own that starts as a copy of the local one."""
    local: jax.Array = self.get_variable("params", name)["kernel"]

    def copied(key, shape, dtype):
      return local.reshape(shape).astype(dtype)

    return to_heads(
      self.num_heads,
      self.width_of_heads(x),
      f"{name}_global",
      dtype=self.dtype,
      use_bias=self.use_bias,
      kernel_init=copied,
    )(x)

  def _rows(self, layout: TokenLayout) -> np.ndarray:
    """The global tokens.

    Raises:
      ConfigError: there is none, or `global_projections` is unknown.
    """
    field = f"token_mixer.global_projections={self.global_projections!r}"
    if self.global_projections not in GLOBAL_PROJECTIONS:
      raise ConfigError(f"{field}; valid: {listing(GLOBAL_PROJECTIONS)}")
    prefix = range(layout.prefix) if self.prefix_global else ()
    rows = np.unique([*prefix, *(token % layout.length for token in self.global_tokens)])
    if not rows.size:
      raise ConfigError(
        f"{field} needs global tokens: a class token (model.pool='cls'), model.extra_tokens, or"
        " token_mixer.global_tokens"
      )
    return rows
