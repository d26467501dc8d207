"""The pre-norm block of the vision transformer, and the block of CCT."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.blocks.base_block import Block
from vitx.blocks.token_reduction import Reduce
from vitx.config.checks import NonNegative, Positive, Rate
from vitx.layers.mlp import ACTIVATIONS, Activation
from vitx.ops.layout import TokenLayout


class PreNormBlock(Block):
  """x + mixer(norm(x)), then x + MLP(norm(x)) (Dosovitskiy et al. 2021, equations 2 and 3).

  Attributes:
    mixer_dropout: The dropout rate on the mixer's branch; `None` means `dropout`.
    activation: The activation of the MLP; "gelu" is exact, "gelu_tanh" is the approximation in
      Google's code.
    branch_divisor: The number by which both branches are divided before they are added to the
      tokens (Jiang et al. 2021, released code: `skip_lam`, 2 in LV-ViT-S).
    layer_scale: The initial value of learned factors, one per channel, that multiply both branches
      (LayerScale; Touvron et al. 2021b, equation 4); `None` means no factors. DINOv2 uses 1e-5.
  """

  mixer_dropout: Rate | None = None
  activation: Activation = "gelu"
  branch_divisor: Positive = 1.0
  layer_scale: NonNegative | None = None

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    layout: TokenLayout,
    *,
    mask: jax.Array | None = None,
    at: jax.Array | None = None,
    reduce: Reduce | None = None,
    train: bool,
  ) -> Any:
    """Maps tokens (B, N, C) to (B, N, C); `Block` describes the arguments except `reduce`.

    Args:
      x, layout, mask, at, train: The arguments of `Block.__call__`.
      reduce: The result of `TokenReduction.at`, which removes some tokens before the MLP. The block
        then returns the remaining tokens, (B, N', C), and their mask or sizes, (B, N') or None.
    """
    y, compared = self.normalize(x, "mixer_norm"), None
    if reduce is None:
      y = self.mix_tokens(y, layout, mask, at, train, self.mixer_dropout)
    else:
      y, compared = self.rank_tokens(y, layout, mask, reduce.needs, train, self.mixer_dropout)
    x = x + self.divide(self.drop_branch(self.scale(y, "mixer_scale"), train))
    if reduce is not None:
      x, mask = reduce(x, layout, mask, compared)
    y = self.normalize(x, "mlp_norm")
    branch = self.scale(self.apply_mlp(y, train, ACTIVATIONS[self.activation]), "mlp_scale")
    x = self.choose_residual(x, y) + self.divide(self.drop_branch(branch, train))
    return x if reduce is None else (x, mask)

  def scale(self, branch: jax.Array, name: str) -> jax.Array:
    """Multiplies the channels of a branch (B, N, C) by the factors of LayerScale called `name`.

    If `layer_scale` is None, the branch stays unchanged.
    """
    if self.layer_scale is None:
      return branch
    start = nn.initializers.constant(self.layer_scale)
    factors = self.param(name, start, branch.shape[-1:], jnp.float32)
    return branch * factors.astype(branch.dtype)

  def divide(self, branch: jax.Array) -> jax.Array:
    """Divides a branch (B, N, C) by `branch_divisor`."""
    return branch if self.branch_divisor == 1 else branch / self.branch_divisor

  def choose_residual(self, x: jax.Array, normalized: jax.Array) -> jax.Array:
    """Returns the tokens (B, N, C) to which the MLP's branch is added.

    Here these are the input of the second normalization; a subclass may use others.

    Args:
      x: The input of the second normalization, (B, N, C).
      normalized: The output of the second normalization, (B, N, C).
    """
    return x


class NormalizedStreamBlock(PreNormBlock):
  """CCT's block: x + mixer(norm(x)), then y = norm(x), y + MLP(y) (Hassani et al. 2021, code).

  The second normalization is applied to the residual stream itself.
  """

  def choose_residual(self, x: jax.Array, normalized: jax.Array) -> jax.Array:
    """Returns the output of the second normalization, (B, N, C)."""
    return normalized
