"""Dynamic loss scaling for float16 (Micikevicius et al. 2018, section 3.2)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

GROWTH_INTERVAL = 2000
LARGEST = 2.0**24


class LossScale(struct.PyTreeNode):
  """The factor on the loss: halved when a gradient overflows, doubled after 2,000 good steps.

  Attributes:
    value: float32 scalar.
    good_steps: int32 scalar, steps since the last change.
  """

  value: jax.Array
  good_steps: jax.Array

  @classmethod
  def create(cls) -> "LossScale":
    """Starts at 2^16 (Child et al. 2019, section 6)."""
    return cls(value=jnp.float32(2.0**16), good_steps=jnp.int32(0))

  def adjust(self, finite: jax.Array) -> "LossScale":
    """Returns the scale after a step whose gradients were (or were not) all finite."""
    grow = finite & (self.good_steps + 1 >= GROWTH_INTERVAL)
    value = jnp.where(grow, jnp.minimum(self.value * 2, LARGEST), self.value)
    value = jnp.where(finite, value, jnp.maximum(self.value / 2, 1.0))
    return LossScale(value, jnp.where(finite & ~grow, self.good_steps + 1, 0))


def all_finite(tree: Any) -> jax.Array:
  """Returns whether every entry of every leaf is finite, a boolean scalar."""
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
