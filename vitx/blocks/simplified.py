"""Simplified blocks, which have no skip around the token mixer.

They are made for the token mixer "shaped", which itself starts near the identity and needs neither
a value nor an output projection. With another mixer they train as badly as skipless blocks.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.blocks.base_block import Block, Mix
from vitx.config.checks import Finite


class SASParallelBlock(Block):
  """The parallel simplified block, SAS-P: y = norm(x), then g mixer(y) + h MLP(y), without skips.

  (He and Hofmann 2024, section 4.3.)

  Attributes:
    stochastic_depth: The probability that a branch is dropped; must be 0.
    mixer_gain: The initial value of the learned g.
    mlp_gain: The initial value of the learned h. He and Hofmann use 0.1 for 18 layers, a value of
      order 1 / sqrt(depth).
  """

  logged: ClassVar[tuple[str, ...]] = ("mixer_gain", "mlp_gain")

  mixer_gain: Finite = 1.0
  mlp_gain: Finite = 0.1

  def arrange(self, x: jax.Array, mix: Mix, train: bool) -> jax.Array:
    """Maps tokens (B, N, C) to (B, N, C); `Block` describes the arguments."""
    self.refuse_stochastic_depth("block='sas_p'")
    y = self.normalize(x, "norm")
    mixed, mlp = mix(y), self.apply_mlp(y, train)
    return self.gain("mixer_gain") * mixed + self.gain("mlp_gain") * mlp

  def gain(self, name: str) -> jax.Array:
    """Returns the learned scalar called `name`, whose initial value is the field of this name.

    Weight decay of matrices does not apply to it, since its name is not "kernel".
    """
    start = nn.initializers.constant(getattr(self, name))
    return self.param(name, start, (), jnp.float32).astype(self.dtype)


class SASBlock(SASParallelBlock):
  """The simplified block SAS: y = g mixer(norm(x)), then s y + h MLP(norm(y)).

  (He and Hofmann 2024, section 4.2.) Only the MLP has a skip.

  Attributes:
    skip_gain: The initial value of the learned s.
  """

  logged: ClassVar = ("mixer_gain", "mlp_gain", "skip_gain")

  skip_gain: Finite = 1.0

  def arrange(self, x: jax.Array, mix: Mix, train: bool) -> jax.Array:
    """Maps tokens (B, N, C) to (B, N, C); `Block` describes the arguments."""
    self.refuse_stochastic_depth("block='sas'")
    mixed = mix(self.normalize(x, "mixer_norm"))
    y = self.gain("mixer_gain") * mixed
    branch = self.apply_mlp(self.normalize(y, "mlp_norm"), train)
    return self.gain("skip_gain") * y + self.gain("mlp_gain") * branch


class SimplifiedBlock(Block):
  """y = norm(x), then mixer(y) + MLP(y), without skips and gains (Diaz 2023).

  This is SAS-P without gains, as in Diaz's figure.

  Attributes:
    stochastic_depth: The probability that a branch is dropped; must be 0.
    serial: Whether the block is MLP(mixer(y)) instead, as in Diaz's formula of the vanilla block.
  """

  serial: bool = False

  def arrange(self, x: jax.Array, mix: Mix, train: bool) -> jax.Array:
    """Maps tokens (B, N, C) to (B, N, C); `Block` describes the arguments."""
    self.refuse_stochastic_depth("block='simplified'")
    y = self.normalize(x, "norm")
    mixed = mix(y)
    return self.apply_mlp(mixed, train) if self.serial else mixed + self.apply_mlp(y, train)
