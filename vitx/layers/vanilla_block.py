"""The pre-norm block as small codebases write it, and without its skips."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.errors import ConfigError, listing
from vitx.layers.dropout import Dropout
from vitx.layers.mlp import MLP
from vitx.ops.layout import TokenLayout

Dtype = jax.typing.DTypeLike
NORMS = ("shared", "mlp", "two")


def refuse_stochastic_depth(rate: float, block: str) -> None:
  """Raises ConfigError if `rate` is not 0: a block without skips has no branch to leave out."""
  if rate:
    raise ConfigError(
      f"model.stochastic_depth={rate:g}: model.block={block!r} has no skip past what would be"
      " dropped; set it to 0"
    )


class VanillaBlock(nn.Module):
  """x + mixer(norm(x)), then x + MLP(norm(x)), with fewer normalisations than `PreNormBlock`.

  Attributes:
    token_mixer, mlp_dim, norm, dropout, stochastic_depth, dtype: as in `PreNormBlock`.
    norms: "shared": one and the same normalisation in both places; "mlp": one, before the MLP only;
      "two": one each, which is `PreNormBlock`.
    skips: whether each branch is added to x, or takes its place (then there is no stochastic
      depth).
  """

  token_mixer: Callable[..., nn.Module]
  mlp_dim: int
  norm: Callable[..., nn.Module] = nn.LayerNorm
  dropout: float = 0.0
  stochastic_depth: float = 0.0
  norms: str = "shared"
  skips: bool = True
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, mask: jax.Array | None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); `mask` is boolean (B, N), True = may be attended.

    Raises:
      ConfigError: `norms` has no valid value, or stochastic depth without skips.
    """
    mixer_norm, mlp_norm = self._norms()
    y = self.token_mixer(name="token_mixer")(mixer_norm(x), layout, mask=mask, train=train)
    x = self._joined(x, Dropout(self.dropout)(y, train), train)
    mlp = MLP(self.mlp_dim, self.dropout, dtype=self.dtype, name="mlp")
    return self._joined(x, mlp(mlp_norm(x), train), train)

  def _norms(self) -> tuple[Callable, Callable]:
    if self.norms not in NORMS:
      raise ConfigError(f"block.norms={self.norms!r}; valid: {listing(NORMS)}")
    if self.norms == "two":
      names = ("mixer_norm", "mlp_norm")
      first, second = (self.norm(dtype=self.dtype, name=name) for name in names)
      return first, second
    one = self.norm(dtype=self.dtype, name="norm")
    return (lambda x: x if self.norms == "mlp" else one(x)), one

  def _joined(self, x: jax.Array, branch: jax.Array, train: bool) -> jax.Array:
    if not self.skips:
      refuse_stochastic_depth(self.stochastic_depth, "skipless")
      return branch
    return x + Dropout(self.stochastic_depth, whole_example=True)(branch, train)


class SkiplessBlock(VanillaBlock):
  """MLP(norm(mixer(norm(x)))): the pre-norm block with both skips removed.

  Each layer averages the tokens, until all are alike (Dong et al. 2021): deep stacks hardly train.
  """

  norms: str = "two"
  skips: bool = False
