"""RandAugment (Cubuk et al. 2019): its random draws, and the "increasing" operations of timm.

The operations of the paper, which AutoAugment shares, are in `autoaugment`. DeiT, LV-ViT and their
successors train with the operations of timm (`rand-m9-mstd0.5-inc1`). They differ from the paper's:
there are 15; each changes the image more at a higher level; the level varies between operations;
the ranges differ; translations may be by fractions of a pixel; the mean color fills empty areas.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from vitx.data.images import color_uint8, operations, sampling

TRANSLATION = 0.45  # the largest translation, as a share of the side


@dataclass(frozen=True)
class Sampler:
  """The distribution from which RandAugment draws the operations on an image.

  Attributes:
    count: The number of operations, drawn with replacement.
    magnitude: The mean level of an operation, 0..10.
    magnitude_std: The standard deviation of the level, which is clipped to 0..10.
    probability: The probability that an operation is applied.
  """

  count: int
  magnitude: float
  magnitude_std: float = 0.0
  probability: float = 1.0

  def __call__(self, key: jax.Array, choices: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws the operations on an image.

    The absolute strength of an operation is a tenth of its level. The sign, drawn at random, is the
    direction of operations that have a direction.

    Args:
      key: The random key.
      choices: The number of operations to choose from.

    Returns:
      The indices of the operations, their strengths in -1..1, and a mask of the operations to
      apply, (count,) each.
    """
    which, direction = jax.random.split(key)  # equals folding 0 and 1 into the key
    operations = jax.random.randint(which, (self.count,), 0, choices)
    sign = jax.random.rademacher(direction, (self.count,), jnp.float32)
    strengths = jnp.full(self.count, self.magnitude / 10, jnp.float32)
    if self.magnitude_std:
      noise = jax.random.normal(jax.random.fold_in(key, 2), (self.count,))
      strengths = jnp.clip(strengths + self.magnitude_std / 10 * noise, 0.0, 1.0)
    applied = jnp.ones(self.count, bool)
    if self.probability < 1:
      applied = jax.random.bernoulli(jax.random.fold_in(key, 3), self.probability, (self.count,))
    return operations, sign * strengths, applied


def _whole(value: jax.Array) -> jax.Array:
  """Rounds down; but a float32 value slightly below a whole number becomes this number."""
  return jnp.floor(value + 2.0**-12)


GEOMETRIC = operations.make_geometric(lambda strength, side: TRANSLATION * side * strength)
COLOR: dict[str, operations.Change] = {
  **operations.ENHANCING,
  "posterize": lambda image, strength: color_uint8.posterize(
    image, 4.0 - _whole(4.0 * jnp.abs(strength))
  ),
  "solarize": lambda image, strength: color_uint8.solarize(
    image, 256.0 - _whole(256.0 * jnp.abs(strength))
  ),
  "solarize_add": lambda image, strength: color_uint8.solarize_add(
    image, _whole(110.0 * jnp.abs(strength))
  ),
  **operations.WITHOUT_STRENGTH,
  **operations.IDENTITY,
}
# The identity, which is last in GEOMETRIC and in COLOR, is never drawn, as in timm. It replaces the
# operations that are not applied.
OPERATIONS = (*list(GEOMETRIC)[:-1], *COLOR)


def operate(
  image: jax.Array,
  operation: jax.Array,
  strength: jax.Array,
  cubic: jax.Array | bool,
  fill: jax.Array,
) -> jax.Array:
  """Applies one operation to an image (H, W, C) of whole numbers 0..255 in float32.

  Args:
    image: The image (H, W, C).
    operation: The index in `OPERATIONS`.
    strength: The strength in -1..1; operations without a direction take its absolute value.
    cubic: Whether the geometric operations sample bicubically, else bilinearly.
    fill: The color of pixels from outside the image, whole numbers (C,).
  """
  plain = len(GEOMETRIC) - 1  # the identity, which is last in GEOMETRIC and in COLOR
  color = jnp.where(operation < plain, len(COLOR) - 1, operation - plain)

  def sample(x: jax.Array, matrix: jax.Array) -> jax.Array:
    return sampling.sample(x, matrix, cubic, fill)

  geometric = jnp.minimum(operation, plain)
  return operations.operate(image, (GEOMETRIC, geometric), (COLOR, color), strength, sample)


def increasing(
  key: jax.Array, image: jax.Array, draw: Sampler, interpolation: str, mean: Any
) -> jax.Array:
  """Applies operations drawn from timm's 15, whose effect always increases with the magnitude.

  Args:
    key: The random key of this example for RandAugment.
    image: An image (H, W, C) with values in 0..1, which is first rounded to 8 bits.
    draw: The distribution of the operations and strengths.
    interpolation: One of bilinear, bicubic and random; with random, each operation draws one.
    mean: The mean per channel in 0..1. Rounded to 8 bits, it is the color of pixels that come from
      outside the image.
  """
  which, strengths, applied = draw(key, len(OPERATIONS) - 1)
  which = jnp.where(applied, which, OPERATIONS.index("identity"))
  cubic = jnp.full(draw.count, interpolation == "bicubic")
  if interpolation == "random":
    cubic = jax.random.bernoulli(jax.random.fold_in(key, 4), 0.5, (draw.count,))
  fill = jnp.minimum(jnp.round(255 * jnp.asarray(mean, jnp.float32)), 255)

  def apply(x: jax.Array, operation: jax.Array, strength: jax.Array, drawn: jax.Array) -> jax.Array:
    return operate(x, operation, strength, interpolation != "bilinear" and drawn, fill)

  return operations.apply_in_turn(image, (which, strengths, cubic), apply)
