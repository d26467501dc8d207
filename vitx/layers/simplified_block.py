"""Simplified blocks: no skip around the token mixer, which itself starts near the identity.

They are made for the token mixer "shaped", whose matrix has the identity in it and which needs
neither value nor output projection. With another mixer they train as badly as skipless blocks.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.layers.dropout import Dropout
from vitx.layers.mlp import MLP
from vitx.layers.vanilla_block import refuse_stochastic_depth
from vitx.ops.layout import TokenLayout

Dtype = jax.typing.DTypeLike


class SASParallelBlock(nn.Module):
  """y = norm(x), then g mixer(y) + h MLP(y), no skip: SAS-P (He and Hofmann 2024, section 4.3).

  Attributes:
    token_mixer, mlp_dim, norm, dropout, dtype: as in `PreNormBlock`.
    stochastic_depth: must be 0.
    mixer_gain: g at the start; learned.
    mlp_gain: h at the start; learned. Theirs is 0.1 at 18 layers, of order 1 / sqrt(depth).
  """

  token_mixer: Callable[..., nn.Module]
  mlp_dim: int
  norm: Callable[..., nn.Module] = nn.LayerNorm
  dropout: float = 0.0
  stochastic_depth: float = 0.0
  mixer_gain: float = 1.0
  mlp_gain: float = 0.1
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, mask: jax.Array | None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); `mask` is boolean (B, N), True = may be attended.

    Raises:
      ConfigError: stochastic depth.
    """
    refuse_stochastic_depth(self.stochastic_depth, "sas_p")
    y = self.norm(dtype=self.dtype, name="norm")(x)
    mixed = self.token_mixer(name="token_mixer")(y, layout, mask=mask, train=train)
    mixed = Dropout(self.dropout)(mixed, train)
    mlp = MLP(self.mlp_dim, self.dropout, dtype=self.dtype, name="mlp")(y, train)
    return self.gain("mixer_gain") * mixed + self.gain("mlp_gain") * mlp

  def gain(self, name: str) -> jax.Array:
    """A learned scalar. It is no "kernel": weight decay of matrices leaves it alone."""
    start = nn.initializers.constant(getattr(self, name))
    return self.param(name, start, (), jnp.float32).astype(self.dtype)


class SASBlock(SASParallelBlock):
  """y = g mixer(norm(x)), then s y + h MLP(norm(y)): SAS (He and Hofmann 2024, section 4.2).

  Only the MLP has a skip.

  Attributes:
    skip_gain: s at the start; learned.
    others: see `SASParallelBlock`.
  """

  skip_gain: float = 1.0

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, mask: jax.Array | None, train: bool
  ) -> jax.Array:
    """See `SASParallelBlock`."""
    refuse_stochastic_depth(self.stochastic_depth, "sas")
    y = self.norm(dtype=self.dtype, name="mixer_norm")(x)
    y = self.token_mixer(name="token_mixer")(y, layout, mask=mask, train=train)
    y = self.gain("mixer_gain") * Dropout(self.dropout)(y, train)
    mlp = MLP(self.mlp_dim, self.dropout, dtype=self.dtype, name="mlp")
    branch = mlp(self.norm(dtype=self.dtype, name="mlp_norm")(y), train)
    return self.gain("skip_gain") * y + self.gain("mlp_gain") * branch


class SimplifiedBlock(nn.Module):
  """y = norm(x), then mixer(y) + MLP(y), no skip and no gains (Diaz 2023).

  The block's figure, without the gains that it leaves out of SAS-P.

  Attributes:
    token_mixer, mlp_dim, norm, dropout, dtype: as in `PreNormBlock`.
    stochastic_depth: must be 0.
    serial: MLP(mixer(y)) instead, as the source's formula of the vanilla block reads.
  """

  token_mixer: Callable[..., nn.Module]
  mlp_dim: int
  norm: Callable[..., nn.Module] = nn.LayerNorm
  dropout: float = 0.0
  stochastic_depth: float = 0.0
  serial: bool = False
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, mask: jax.Array | None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); `mask` is boolean (B, N), True = may be attended.

    Raises:
      ConfigError: stochastic depth.
    """
    refuse_stochastic_depth(self.stochastic_depth, "simplified")
    y = self.norm(dtype=self.dtype, name="norm")(x)
    mixed = self.token_mixer(name="token_mixer")(y, layout, mask=mask, train=train)
    mixed = Dropout(self.dropout)(mixed, train)
    mlp = MLP(self.mlp_dim, self.dropout, dtype=self.dtype, name="mlp")
    return mlp(mixed, train) if self.serial else mixed + mlp(y, train)
