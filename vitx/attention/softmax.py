"""Softmax attention."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.projections import Dtype, from_heads, head_dim_of, to_heads
from vitx.errors import ConfigError, listing
from vitx.ops import softmax
from vitx.ops.layout import TokenLayout

IMPLEMENTATIONS = ("auto", "masked", "kernelized")


class SoftmaxAttention(nn.Module):
  """Multi-head softmax attention (Vaswani et al. 2017, section 3.2).

  Attributes:
    num_heads: H.
    head_dim: D; none: C / H.
    use_bias: of the query, key and value projections.
    dropout: of the attention probabilities.
    implementation: "masked" holds the matrix and sows it as intermediate `attention` (B, H, N, N);
      "kernelized" is the library's fused call; "auto" is "kernelized" but for dropout, which only
      "masked" can draw, and float16, which the library's call does not know on every backend.
    dtype: of the computation; probabilities are float32.
    layer, depth: the position of the block that this mixer serves.
  """

  num_heads: int
  head_dim: int | None = None
  use_bias: bool = True
  dropout: float = 0.0
  implementation: str = "auto"
  dtype: Dtype = jnp.float32
  layer: int = 0
  depth: int = 1

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, *, mask: jax.Array | None = None, train: bool
  ) -> jax.Array:
    """Mixes tokens.

    Args:
      x: (B, N, C).
      layout: the tokens' arrangement; softmax attention does not look at it.
      mask: boolean (B, N), True = may be attended. Masked tokens contribute exactly nothing.
      train: whether dropout is active; it draws from the stream "dropout".

    Returns:
      (B, N, C).

    Raises:
      ConfigError: unknown implementation, or "kernelized" with dropout.
    """
    width = x.shape[-1]
    head_dim = head_dim_of(width, self.num_heads, self.head_dim)
    q, k, v = (
      to_heads(self.num_heads, head_dim, name, dtype=self.dtype, use_bias=self.use_bias)(x)
      for name in ("query", "key", "value")
    )  # (B, N, H, D) each
    attend = None if mask is None else mask[:, None, None, :]  # (B, 1, 1, N)
    if self._chosen() == "masked":
      key = self.make_rng("dropout") if train and self.dropout else None
      out, matrix = softmax.masked_attention(
        q, k, v, mask=attend, dropout_rate=self.dropout, key=key
      )
      self.sow("intermediates", "attention", matrix)
    else:
      out = softmax.fused_attention(q, k, v, mask=attend)
    return from_heads(width, dtype=self.dtype)(out)

  def _chosen(self) -> str:
    field = "token_mixer.implementation"
    if self.implementation not in IMPLEMENTATIONS:
      raise ConfigError(f"{field}={self.implementation!r}; valid: {listing(IMPLEMENTATIONS)}")
    if self.implementation == "kernelized" and self.dropout:
      raise ConfigError(
        f"{field}='kernelized' cannot drop attention probabilities (token_mixer.dropout="
        f"{self.dropout}); use 'masked' or 'auto', or set token_mixer.dropout=0"
      )
    if self.implementation == "auto":
      return "masked" if self.dropout or self.dtype == jnp.float16 else "kernelized"
    return self.implementation
