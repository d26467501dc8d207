"""Dropout and stochastic depth, whose draws for an example do not depend on its device."""

import flax.linen as nn
import jax

from vitx.config.checks import Rate
from vitx.ops.dropout import dropout


class Dropout(nn.Module):
  """Dropout of entries of an array (B, ...), drawn from the stream "dropout".

  Attributes:
    rate: The probability, in [0, 1).
    whole_example: Whether an example is dropped as a whole: stochastic depth (Huang et al. 2016).
  """

  rate: Rate
  whole_example: bool = False

  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    if not train or self.rate == 0:
      return x
    broadcast = range(1, x.ndim) if self.whole_example else ()
    return dropout(x, self.rate, self.make_rng("dropout"), broadcast)
