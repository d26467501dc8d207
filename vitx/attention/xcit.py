"""XCiT's cross-covariance attention, in which channels attend channels."""

from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.base import Properties, TokenMixer
from vitx.layers.projections import from_heads, resolve_head_dim, to_heads
from vitx.ops.inputs import hide_tokens
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, Tokens

SMALLEST = 1e-12  # the smallest norm by which a channel is divided, as in PyTorch's `normalize`


class CrossCovarianceAttention(TokenMixer):
  """Cross-covariance attention (El-Nouby et al. 2021, section 3.2).

  In each head the D channels of the queries attend the D channels of the keys. A channel is a
  vector over the tokens, normalized to length 1. So the attention matrix is (B, H, D, D), and the
  cost is linear in N. In this mixer tokens exchange information only through this matrix; XCiT's
  own blocks also have depthwise convolutions for this purpose. There is only one implementation,
  since no matrix of tokens exists.

  Attributes:
    use_bias: Whether the query, key and value projections have a bias.
    implementation: The way to compute: "auto", the only one.

  `TokenMixer` has the other attributes. The parameter `temperature` (H,), 1 at the start, is the
  factor of the logits.
  """

  properties: ClassVar = Properties(
    implementations=(), permutation_equivariant=True, masking_is_deletion=True
  )
  no_logits_reason: ClassVar = "its matrix is over channels"
  logged: ClassVar = ("temperature",)

  implementation: Literal["auto"] = "auto"
  use_bias: bool = True

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask = None, train: bool
  ) -> Tokens:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False count as zeros."""
    dim = resolve_head_dim(x.shape[-1], self.num_heads, None)
    q, k, v = (
      to_heads(self.num_heads, dim, name, dtype=self.dtype, use_bias=self.use_bias)(x)
      for name in ("query", "key", "value")
    )
    q, k = _unit_channels(q, mask), _unit_channels(k, mask)
    ones = nn.initializers.ones
    temperature = self.param("temperature", ones, (self.num_heads,), jnp.float32)
    logits = jnp.einsum("bnhd,bnhe->bhde", q, k) * temperature[:, None, None]
    mixed = jnp.einsum("bhde,bnhe->bnhd", nn.softmax(logits).astype(v.dtype), v)
    return from_heads(x.shape[-1], dtype=self.dtype)(mixed)


def _unit_channels(x: jax.Array, mask: jax.Array | None) -> jax.Array:
  """Divides each channel of x (B, N, H, D) by its length over the unmasked tokens, in float32."""
  x = hide_tokens(x.astype(jnp.float32), mask)
  squares = jnp.sum(x * x, axis=1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(squares, SMALLEST**2))
