"""Pooling of tokens (B, N, C) to one vector (B, C) for the head.

The attribute `prefix` of a pool is the number of learned tokens that the model puts in front of the
grid for it.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.checks import NonNegative, PositiveInt
from vitx.layers.mlp import ACTIVATIONS, MLP, Activation
from vitx.layers.projections import XAVIER
from vitx.ops.layout import TokenLayout


class ClassToken(nn.Module):
  """Pooling by the class token, a learned first token (Dosovitskiy et al. 2021, equation 1).

  Attributes:
    stddev: The standard deviation of the class token's normal initialization.
  """

  prefix: ClassVar[int] = 1

  stddev: NonNegative = 0.0

  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the first token, (B, C)."""
    return x[:, 0]


class ClassAndDistillation(ClassToken):
  """Pooling to two vectors: class token and distillation token (Touvron et al. 2021, section 4)."""

  prefix: ClassVar[int] = 2

  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the first two tokens, (B, 2, C)."""
    return x[:, :2]


class Mean(nn.Module):
  """The mean of the grid's tokens, in float32."""

  prefix: ClassVar[int] = 0

  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the mean of the grid's tokens, (B, C)."""
    return jnp.mean(x[:, layout.prefix :], axis=1, dtype=jnp.float32).astype(x.dtype)


class MeanOfAll(nn.Module):
  """The mean of all tokens, in float32, including a class token in front of the grid.

  Attributes:
    stddev: The standard deviation of the class token's normal initialization.
  """

  prefix: ClassVar[int] = 1

  stddev: NonNegative = 0.0

  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the mean of all tokens, (B, C)."""
    return jnp.mean(x, axis=1, dtype=jnp.float32).astype(x.dtype)


class SequencePooling(nn.Module):
  """The mean of the grid's tokens, weighted by learned scores (Hassani et al. 2021, section 3.2).

  A linear map gives each token a score; the weights are the softmax of the scores over the tokens.
  """

  prefix: ClassVar[int] = 0

  @nn.compact
  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the weighted mean of the grid's tokens, (B, C)."""
    full = x[:, layout.prefix :].astype(jnp.float32)
    weights = jax.nn.softmax(nn.Dense(1, name="score")(full), axis=1)  # (B, N, 1)
    return jnp.sum(weights * full, axis=1).astype(x.dtype)


class AttentionPooling(nn.Module):
  """Attention of one learned query to the grid's tokens, then an MLP (Zhai et al. 2022).

  The result is y + MLP(norm(y)) with y = attention(query, tokens). This is `MAPHead` in the
  authors' code and the head of SigLIP's image tower.

  Attributes:
    num_heads: The number of heads H, which divides the C channels; None means C // 64, at least 1.
    mlp_dim: The hidden width of the MLP; None means 4 C.
    activation: The activation of the MLP; SigLIP has "gelu_tanh".
  """

  prefix: ClassVar[int] = 0

  num_heads: PositiveInt | None = None
  mlp_dim: PositiveInt | None = None
  activation: Activation = "gelu"

  def resolve_sizes(self, width: int) -> tuple[int, int]:
    """Returns the number of heads H and the hidden width of the MLP for C channels."""
    return self.num_heads or max(1, width // 64), self.mlp_dim or 4 * width

  @nn.compact
  def __call__(self, x: jax.Array, layout: TokenLayout) -> jax.Array:
    """Returns the pooled vector, (B, C)."""
    batch, _, width = x.shape
    heads, hidden = self.resolve_sizes(width)
    probe = self.param("probe", XAVIER, (1, 1, width), jnp.float32)
    attend = nn.MultiHeadDotProductAttention(
      heads, dtype=x.dtype, kernel_init=XAVIER, force_fp32_for_softmax=True, name="attention"
    )
    grid = x[:, layout.prefix :]
    y = attend(jnp.broadcast_to(probe.astype(x.dtype), (batch, 1, width)), grid)[:, 0]
    z = nn.LayerNorm(dtype=x.dtype, name="norm")(y)
    mlp = MLP(hidden, activation=ACTIVATIONS[self.activation], dtype=x.dtype, name="mlp")
    return y + mlp(z, train=False)


POOLS = {
  "class_and_distillation": ClassAndDistillation,
  "cls": ClassToken,
  "map": AttentionPooling,
  "mean": Mean,
  "mean_of_all": MeanOfAll,
  "sequence": SequencePooling,
}
