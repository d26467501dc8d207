"""Longformer's attention: a sliding window and a few global tokens."""

from typing import Annotated, Literal

import jax
import numpy as np

from vitx.attention.pattern import PatternAttention
from vitx.config.checks import Range
from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import DilatedWindow, Global, Pattern


class LongformerAttention(PatternAttention):
  """Attention in a sliding window, with global tokens (Beltagy et al. 2020, section 3.1).

  The window of a head may be dilated: it then has gaps between its keys.

  Attributes:
    window: The number of keys on each side of the query.
    dilation: The step between keys, for each head; if there are fewer than H values, they repeat.
    global_tokens: The indices of the tokens that are global besides the prefix: 0 ... N-1, counted
      from the first prefix token; negative indices count from the end.
    global_projections: The projections of global tokens: "shared", or "separate", as published.
      With "separate", global queries attend all keys through separate projections
      (`query_global`, `key_global`, `value_global`), which start as copies of the local ones if
      `model.initialization` is "as_made"; another initialization draws them separately. The other
      queries attend global keys through the local projections, in one softmax with the window. All
      queries share the tables of `relative_bias`.

  `PatternAttention` has the other attributes.
  """

  window: Annotated[int, Range("[0, 9999]")] = 8
  dilation: tuple[Annotated[int, Range("[1, 9999]")], ...] = (1,)
  global_tokens: tuple[int, ...] = ()
  global_projections: Literal["shared", "separate"] = "shared"

  def __post_init__(self):
    """Refuses `causal` with separate projections, whose queries attend all keys."""
    super().__post_init__()
    if self.causal and self.global_projections == "separate":
      raise ConfigError("token_mixer.causal=True: use token_mixer.global_projections='shared'.")

  def pattern(self, layout: TokenLayout) -> Pattern:
    window = DilatedWindow(self.window, tuple(self.dilation))
    return window | Global(tokens=tuple(self.global_tokens)) if self.global_tokens else window

  def _attend(self, x, q, k, v, layout, scale, mask, train):
    """Attends along the pattern; separate projections then replace outputs of global queries."""
    out, matrix = super()._attend(x, q, k, v, layout, scale, mask, train)
    prefix = range(layout.prefix) if self.prefix_global else ()
    rows = np.unique([*prefix, *(token % layout.length for token in self.global_tokens)])
    if self.global_projections == "shared" or not rows.size:
      return out, matrix
    q, k, v = (self._global(x, name) for name in ("query", "key", "value"))
    q, k = self.apply_positions(q, k, layout, scale)
    implementation = "kernelized" if matrix is None else "masked"
    arguments = {"key_mask": mask, "scale": scale, "implementation": implementation}
    global_out, probabilities = self.softmax_attention(q[:, rows], k, v, train=train, **arguments)
    if matrix is not None:
      matrix = matrix.at[:, :, rows].set(probabilities)
    return out.at[:, rows].set(global_out), matrix

  def _global(self, x: jax.Array, name: str) -> jax.Array:
    """Projects tokens to heads by a separate projection that starts as a copy of the local one."""
    local: jax.Array = self.get_variable("params", name)["kernel"]

    def copy(key, shape, dtype):
      return local.reshape(shape).astype(dtype)

    dim = self.value_dim if name == "value" else None
    return self.to_heads(x, f"{name}_global", dim, kernel_init=copy)
