"""MLP-Mixer's token mixing: an MLP along the tokens."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.positions import check_length
from vitx.attention.projections import Dtype
from vitx.attention.properties import Properties
from vitx.errors import ConfigError
from vitx.ops.layout import TokenLayout


class MLPMixing(nn.Module):
  """Two linear maps over the tokens with a GELU between, shared by the channels.

  (Tolstikhin et al. 2021, equation 1.) The number of tokens is fixed at `init`. There is one path
  only: the maps are the matrix.

  Attributes:
    num_heads: not used; the model sets it for every mixer.
    hidden: width between the two maps; none: N.
    implementation: "auto", the one path.
    dtype: of the computation.
    layer, depth: the position of the block that this mixer serves.
  """

  properties: ClassVar = Properties(implementations=(), fixed_length=True, flops_exponent=2.0)

  num_heads: int = 1
  hidden: int | None = None
  implementation: str = "auto"
  dtype: Dtype = jnp.float32
  layer: int = 0
  depth: int = 1

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, *, mask: jax.Array | None = None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False count as zeros.

    Raises:
      ConfigError: another N than at `init`, or an implementation but "auto".
    """
    if self.implementation != "auto":
      raise ConfigError(
        f"token_mixer.implementation={self.implementation!r}: MLP mixing has one path; use 'auto'"
      )
    length = x.shape[1]
    if self.has_variable("params", "up"):
      check_length(self.get_variable("params", "up")["kernel"].shape, length, "up")
    if mask is not None:
      x = jnp.where(mask[:, :, None], x, jnp.zeros_like(x))
    init = nn.initializers.xavier_uniform()
    hidden = length if self.hidden is None else self.hidden
    y = nn.Dense(hidden, kernel_init=init, dtype=self.dtype, name="up")(jnp.swapaxes(x, 1, 2))
    y = nn.gelu(y, approximate=False)
    y = nn.Dense(length, kernel_init=init, dtype=self.dtype, name="down")(y)
    return jnp.swapaxes(y, 1, 2)
