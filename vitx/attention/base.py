"""What token mixers share: the fields that a config sets, and how tokens become q, k and v."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.choices import implementation_of
from vitx.attention.contract import Properties
from vitx.attention.positions import bias_tables, turned
from vitx.errors import ConfigError
from vitx.layers.projections import Dtype, head_dim_of, query_key_value
from vitx.ops.layout import TokenLayout
from vitx.ops.relative_bias import Places, axial_places, widened


class TokenMixer(nn.Module):
  """Base of the token mixers.

  Attributes:
    num_heads: H; the model sets it for every mixer, with heads or without.
    relative_bias: of the logits, learned for each head: "axial" adds, for every axis of the grid,
      the entry of a table (H, 2 g - 1) at the coordinates' difference; zero at the start, and for
      prefix tokens. An error where a mixer has no logits between tokens.
    implementation: "masked" holds the attention matrix and sows it as intermediate `attention`
      (B, H, N, N); "kernelized" never holds it; "auto" is the faster, see `choices`.
    dtype: of the computation; probabilities, features and their sums are float32.
    layer, depth: the position of the block that this mixer serves.
  """

  properties: ClassVar = Properties()
  without_logits: ClassVar[str] = ""  # why there is none between two tokens to add a bias to

  num_heads: int
  relative_bias: str = "none"
  implementation: str = "auto"
  dtype: Dtype = jnp.float32
  layer: int = 0
  depth: int = 1

  def picked(self, x: jax.Array) -> str:
    """The implementation that runs on tokens (B, N, C).

    Raises:
      ConfigError: unknown, or "kernelized" with dropout.
    """
    return implementation_of(self, x.shape[1])

  def refuse_bias(self) -> None:
    """Raises ConfigError if a relative bias is asked of a mixer that cannot have one."""
    if self.without_logits and self.relative_bias != "none":
      raise ConfigError(
        f"token_mixer.relative_bias={self.relative_bias!r}: {type(self).__name__} has no logit of a"
        f" query and a key to add a bias to: {self.without_logits}; use 'none', or softmax or an"
        " attention pattern"
      )


class AttentionModule(TokenMixer):
  """Base of the mixers with queries, keys and values; call its helpers inside `nn.compact`.

  Attributes:
    head_dim: D; none: C / H.
    use_bias: of the query, key and value projections.
    rotary: "none", "sequence" or "axial" rotation of queries and keys by their position.
    rotary_base: of the frequencies.
    others: see `TokenMixer`.
  """

  head_dim: int | None = None
  use_bias: bool = True
  rotary: str = "none"
  rotary_base: float = 10000.0

  def width_of_heads(self, x: jax.Array) -> int:
    """D for tokens (B, N, C).

    Raises:
      ConfigError: H does not divide C.
    """
    return head_dim_of(x.shape[-1], self.num_heads, self.head_dim)

  def projected(
    self, x: jax.Array, value_dim: int | None = None, value_bias: bool = True
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values (B, N, H, D) of tokens (B, N, C), without positions.

    Args:
      x: (B, N, C).
      value_dim: D of the values, if it is another.
      value_bias: whether values have a bias where queries and keys do.
    """
    heads, dim, bias = self.num_heads, self.width_of_heads(x), self.use_bias
    return query_key_value(
      x, heads, dim, value_dim, dtype=self.dtype, use_bias=bias, value_bias=value_bias
    )

  def positioned(
    self, q: jax.Array, k: jax.Array, layout: TokenLayout, scale: float = 1.0
  ) -> tuple[jax.Array, jax.Array]:
    """Queries and keys with `rotary` and `relative_bias`; the latter makes them wider than D.

    Args:
      q, k: (B, N, H, D).
      layout: of the N tokens.
      scale: that the logits will be multiplied by; the bias is not.

    Raises:
      ConfigError: a kind that is unknown or does not fit.
    """
    self.refuse_bias()
    q, k = turned(self.rotary, self.rotary_base, layout, q, k)
    if self.relative_bias == "none":
      return q, k
    places = self.places(layout)
    return widened(q, k, bias_tables(self, places, q.shape[2]), places, scale)

  def places(self, layout: TokenLayout) -> list[Places]:
    """Where the tokens stand, for each table of `relative_bias`."""
    if self.relative_bias != "axial":
      raise ConfigError(f"token_mixer.relative_bias={self.relative_bias!r}; valid: axial, none")
    return axial_places(layout)
