"""Dropout and stochastic depth whose draws belong to the example, whatever the device."""

import flax.linen as nn
import jax

from vitx.config.checks import Rate
from vitx.ops.dropout import dropout


class Dropout(nn.Module):
  """Drops entries of (B, ...) with probability `rate`, from the stream "dropout".

  Attributes:
    rate: in [0, 1).
    whole_example: one draw for the whole of an example: stochastic depth (Huang et al. 2016).
  """

  rate: Rate
  whole_example: bool = False

  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    if not train or self.rate == 0:
      return x
    broadcast = range(1, x.ndim) if self.whole_example else ()
    return dropout(x, self.rate, self.make_rng("dropout"), broadcast)
