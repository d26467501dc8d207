"""A pre-norm block that may use one normalization twice, or have no skips."""

from typing import Literal

import jax

from vitx.blocks.base_block import Block, Mix

Norms = Literal["shared", "mlp", "two"]


class VanillaBlock(Block):
  """x + mixer(norm(x)), then x + MLP(norm(x)), with one or two normalizations.

  Attributes:
    norms: The normalizations: "shared" has one, used in both places; "mlp" has one, before the MLP
      only; "two" has one in each place, as `PreNormBlock` has.
    skips: Whether each branch is added to x; with False, each branch replaces x, and stochastic
      depth must be 0. Each layer then averages the tokens, until they are all equal (Dong et al.
      2021); deep stacks hardly train.
  """

  norms: Norms = "shared"
  skips: bool = True

  def arrange(self, x: jax.Array, mix: Mix, train: bool) -> jax.Array:
    """Maps tokens (B, N, C) to (B, N, C); `Block` describes the arguments."""
    if not self.skips:
      self.refuse_stochastic_depth("block.skips=False")
    two = self.norms == "two"
    mlp_norm = self.norm(dtype=self.dtype, name="mlp_norm" if two else "norm")
    mixer_norm = self.norm(dtype=self.dtype, name="mixer_norm") if two else mlp_norm
    x = self._join(x, mix(x if self.norms == "mlp" else mixer_norm(x)), train)
    return self._join(x, self.apply_mlp(mlp_norm(x), train), train)

  def _join(self, x: jax.Array, branch: jax.Array, train: bool) -> jax.Array:
    return x + self.drop_branch(branch, train) if self.skips else branch
