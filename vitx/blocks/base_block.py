"""What all blocks are made of."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.errors import ConfigError
from vitx.layers.dropout import Dropout
from vitx.layers.mlp import MLP
from vitx.ops.layout import TokenLayout

Dtype = jax.typing.DTypeLike


class Block(nn.Module):
  """One token mixer and one channel MLP; subclasses arrange them in `__call__`.

  That maps x (B, N, C) to (B, N, C); its `mask` is boolean (B, N), True = may be attended.

  Attributes:
    token_mixer: makes the mixer; called with `name`.
    mlp_dim: hidden width of the MLP.
    norm: makes the normalizations; called with `dtype` and `name`.
    dropout: on both branches and inside the MLP.
    stochastic_depth: probability that a branch is dropped for an example, each by itself.
    dtype: of the computation; normalization statistics are float32.
  """

  token_mixer: Callable[..., nn.Module]
  mlp_dim: int
  norm: Callable[..., nn.Module] = nn.LayerNorm
  dropout: float = 0.0
  stochastic_depth: float = 0.0
  dtype: Dtype = jnp.float32

  def normalized(self, x: jax.Array, name: str) -> jax.Array:
    """The normalization `name` of x."""
    return self.norm(dtype=self.dtype, name=name)(x)

  def mixed(
    self,
    x: jax.Array,
    layout: TokenLayout,
    mask: jax.Array | None,
    train: bool,
    dropout: float | None = None,
  ) -> jax.Array:
    """The token mixer of x, with dropout, perhaps of another rate."""
    y = self.token_mixer(name="token_mixer")(x, layout, mask=mask, train=train)
    return Dropout(self.dropout if dropout is None else dropout)(y, train)

  def through_mlp(self, x: jax.Array, train: bool) -> jax.Array:
    """The MLP of x, with dropout."""
    return MLP(self.mlp_dim, self.dropout, dtype=self.dtype, name="mlp")(x, train)

  def branch(self, y: jax.Array, train: bool) -> jax.Array:
    """A residual branch, dropped for some examples in training."""
    return Dropout(self.stochastic_depth, whole_example=True)(y, train)

  def refuse_stochastic_depth(self, block: str) -> None:
    """Raises ConfigError if there is any: a block without skips has no branch to leave out."""
    if self.stochastic_depth:
      raise ConfigError(
        f"model.stochastic_depth={self.stochastic_depth:g}: model.block={block!r} has no skip past"
        " what would be dropped; set it to 0"
      )
