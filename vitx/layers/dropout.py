"""Dropout and stochastic depth with random bits that depend on the example, not on the device."""

import flax.linen as nn
import jax

from vitx.config.checks import Rate
from vitx.ops.dropout import dropout


class Dropout(nn.Module):
  """Dropout of the entries of an array (B, ...), with random bits from the stream "dropout".

  Attributes:
    rate: The probability, in [0, 1), that an entry is dropped.
    whole_example: Whether all entries of an example are dropped together, which is stochastic depth
      (Huang et al. 2016).
  """

  rate: Rate
  whole_example: bool = False

  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    if not train or self.rate == 0:
      return x
    broadcast = range(1, x.ndim) if self.whole_example else ()
    return dropout(x, self.rate, self.make_rng("dropout"), broadcast)
