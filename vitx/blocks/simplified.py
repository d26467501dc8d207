"""Simplified blocks: no skip around the token mixer, which itself starts near the identity.

They are made for the token mixer "shaped", whose matrix has the identity in it and which needs
neither value nor output projection. With another mixer they train as badly as skipless blocks.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.blocks.base_block import Block
from vitx.config.checks import Finite
from vitx.ops.layout import TokenLayout


class SASParallelBlock(Block):
  """y = norm(x), then g mixer(y) + h MLP(y), no skip: SAS-P (He and Hofmann 2024, section 4.3).

  Attributes:
    stochastic_depth: must be 0.
    mixer_gain: g at the start; learned.
    mlp_gain: h at the start; learned. Theirs is 0.1 at 18 layers, of order 1 / sqrt(depth).
  """

  logged: ClassVar[tuple[str, ...]] = ("mixer_gain", "mlp_gain")

  mixer_gain: Finite = 1.0
  mlp_gain: Finite = 0.1

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    layout: TokenLayout,
    *,
    mask: jax.Array | None = None,
    at: jax.Array | None = None,
    train: bool,
  ) -> jax.Array:
    """Maps tokens (B, N, C) to (B, N, C); arguments as `Block` says.

    Raises:
      ConfigError: stochastic depth.
    """
    self.refuse_stochastic_depth("sas_p")
    y = self.normalize(x, "norm")
    mixed, mlp = self.mix_tokens(y, layout, mask, at, train), self.apply_mlp(y, train)
    return self.gain("mixer_gain") * mixed + self.gain("mlp_gain") * mlp

  def gain(self, name: str) -> jax.Array:
    """Makes a learned scalar; being no "kernel" it is left alone by weight decay of matrices."""
    start = nn.initializers.constant(getattr(self, name))
    return self.param(name, start, (), jnp.float32).astype(self.dtype)


class SASBlock(SASParallelBlock):
  """y = g mixer(norm(x)), then s y + h MLP(norm(y)): SAS (He and Hofmann 2024, section 4.2).

  Only the MLP has a skip.

  Attributes:
    skip_gain: s at the start; learned.
  """

  logged: ClassVar = ("mixer_gain", "mlp_gain", "skip_gain")

  skip_gain: Finite = 1.0

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    layout: TokenLayout,
    *,
    mask: jax.Array | None = None,
    at: jax.Array | None = None,
    train: bool,
  ) -> jax.Array:
    """Maps tokens (B, N, C) to (B, N, C); arguments as `Block` says.

    Raises:
      ConfigError: stochastic depth.
    """
    self.refuse_stochastic_depth("sas")
    mixed = self.mix_tokens(self.normalize(x, "mixer_norm"), layout, mask, at, train)
    y = self.gain("mixer_gain") * mixed
    branch = self.apply_mlp(self.normalize(y, "mlp_norm"), train)
    return self.gain("skip_gain") * y + self.gain("mlp_gain") * branch


class SimplifiedBlock(Block):
  """y = norm(x), then mixer(y) + MLP(y), no skip and no gains (Diaz 2023).

  The block's figure, without the gains that it leaves out of SAS-P.

  Attributes:
    stochastic_depth: must be 0.
    serial: MLP(mixer(y)) instead, as the source's formula of the vanilla block reads.
  """

  serial: bool = False

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    layout: TokenLayout,
    *,
    mask: jax.Array | None = None,
    at: jax.Array | None = None,
    train: bool,
  ) -> jax.Array:
    """Maps tokens (B, N, C) to (B, N, C); arguments as `Block` says.

    Raises:
      ConfigError: stochastic depth.
    """
    self.refuse_stochastic_depth("simplified")
    y = self.normalize(x, "norm")
    mixed = self.mix_tokens(y, layout, mask, at, train)
    return self.apply_mlp(mixed, train) if self.serial else mixed + self.apply_mlp(y, train)
