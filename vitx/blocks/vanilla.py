"""The pre-norm block as in small codebases, and the block without skips."""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import jax

from vitx.blocks.base_block import Block, Mix
from vitx.config.checks import check_choice

Norms = Literal["shared", "mlp", "two"]


class VanillaBlock(Block):
  """x + mixer(norm(x)), then x + MLP(norm(x)), with one or two normalizations.

  Attributes:
    norms: The normalizations: "shared" has one, used in both places; "mlp" has one, before the MLP
      only; "two" has one in each place, as `PreNormBlock` has.
    skips: Whether each branch is added to x; with False, each branch replaces x, and stochastic
      depth must be 0.
  """

  norms: Norms = "shared"
  skips: bool = True

  def arrange(self, x: jax.Array, mix: Mix, train: bool) -> jax.Array:
    """Maps tokens (B, N, C) to (B, N, C); `Block` describes the arguments.

    Raises:
      ConfigError: If `norms` has no valid value, or if there is stochastic depth without skips.
    """
    if not self.skips:
      self.refuse_stochastic_depth("skipless")
    mixer_norm, mlp_norm = self._norms()
    x = self._join(x, mix(mixer_norm(x)), train)
    return self._join(x, self.apply_mlp(mlp_norm(x), train), train)

  def _norms(self) -> tuple[Callable, Callable]:
    check_choice(self.norms, "model.block.norms", get_args(Norms))
    if self.norms == "two":
      return partial(self.normalize, name="mixer_norm"), partial(self.normalize, name="mlp_norm")
    one = self.norm(dtype=self.dtype, name="norm")
    return (lambda x: x if self.norms == "mlp" else one(x)), one

  def _join(self, x: jax.Array, branch: jax.Array, train: bool) -> jax.Array:
    return x + self.drop_branch(branch, train) if self.skips else branch


class SkiplessBlock(VanillaBlock):
  """MLP(norm(mixer(norm(x)))): the pre-norm block with both skips removed.

  Each layer averages the tokens, until they are all equal (Dong et al. 2021); deep stacks hardly
  train.
  """

  norms: Norms = "two"
  skips: bool = False
