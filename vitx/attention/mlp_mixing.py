"""The token mixing of MLP-Mixer: an MLP along the tokens."""

from typing import Annotated, ClassVar, Literal

import flax.linen as nn
import jax.numpy as jnp

from vitx.attention.base import Properties, TokenMixer
from vitx.config.checks import Range
from vitx.layers.mlp import gelu
from vitx.ops.inputs import hide_tokens
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, Tokens


class MLPMixing(TokenMixer):
  """Two linear maps over the tokens with a GELU between them, shared by all channels.

  (Tolstikhin et al. 2021, equation 1.) The number of tokens is fixed at `init`. There is only one
  implementation, since the maps themselves are the mixing matrix.

  Attributes:
    hidden: The width between the two maps; None means N.
    implementation: The way to compute: "auto", the only one.

  `TokenMixer` has the other attributes.
  """

  properties: ClassVar = Properties(implementations=(), fixed_length=True, flops_exponent=2.0)

  no_logits_reason: ClassVar = "its matrix is a parameter"

  implementation: Literal["auto"] = "auto"
  hidden: Annotated[int, Range("[1, 65536]")] | None = None

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask = None, train: bool
  ) -> Tokens:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False count as zeros."""
    length, x = x.shape[1], hide_tokens(x, mask)
    init = nn.initializers.xavier_uniform()
    hidden = length if self.hidden is None else self.hidden
    y = nn.Dense(hidden, kernel_init=init, dtype=self.dtype, name="up")(jnp.swapaxes(x, 1, 2))
    y = nn.Dense(length, kernel_init=init, dtype=self.dtype, name="down")(gelu(y))
    return jnp.swapaxes(y, 1, 2)
