"""RandAugment (Cubuk et al. 2019): its random draws, and the "increasing" operations of timm.

The operations of the paper, which AutoAugment shares, are in `autoaugment`. DeiT, LV-ViT and their
successors train with the operations of timm (`rand-m9-mstd0.5-inc1`), which differ: there are 15,
each changes the image more at a higher level, the level varies between operations, the ranges
differ, positions between pixels are allowed, and the mean color fills empty areas.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from vitx.data.images import color_uint8, image_ops, sampling

TRANSLATION = 0.45  # share of the side


@dataclass(frozen=True)
class Draws:
  """The distribution of the operations on an image.

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
    """Draws operations below `choices`, strengths, and a mask of those to apply, (count,) each.

    A strength in -1..1 is a tenth of the level; its sign is the direction of the operations that
    have one.
    """
    which, direction = jax.random.split(key)  # equals folding in 0 and 1
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
  """Rounds down, allowing for a float32 value slightly below a whole number."""
  return jnp.floor(value + 2.0**-12)


def _factor(strength: jax.Array) -> jax.Array:
  return jnp.maximum(1.0 + 0.9 * strength, 0.1)


# Functions from (strength in -1..1, (height, width)) to a matrix for `sampling.sample`.
GEOMETRIC: dict[str, Callable[[jax.Array, tuple[int, int]], jax.Array]] = {
  "shear_x": lambda strength, size: image_ops.matrix((1, 0.3 * strength, 0), (0, 1, 0)),
  "shear_y": lambda strength, size: image_ops.matrix((1, 0, 0), (0.3 * strength, 1, 0)),
  "translate_x": lambda strength, size: image_ops.matrix(
    (1, 0, TRANSLATION * size[1] * strength), (0, 1, 0)
  ),
  "translate_y": lambda strength, size: image_ops.matrix(
    (1, 0, 0), (0, 1, TRANSLATION * size[0] * strength)
  ),
  "rotate": lambda strength, size: image_ops.rotation(30.0 * strength, *size),
  "identity": lambda strength, size: image_ops.matrix((1, 0, 0), (0, 1, 0)),
}
# Functions of (image of whole numbers 0..255, strength in -1..1).
COLOR: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
  "brightness": lambda image, strength: color_uint8.brightness(image, _factor(strength)),
  "color": lambda image, strength: color_uint8.color(image, _factor(strength)),
  "contrast": lambda image, strength: color_uint8.contrast(image, _factor(strength)),
  "sharpness": lambda image, strength: color_uint8.sharpness(image, _factor(strength)),
  "posterize": lambda image, strength: color_uint8.posterize(
    image, 4.0 - _whole(4.0 * jnp.abs(strength))
  ),
  "solarize": lambda image, strength: color_uint8.solarize(
    image, 256.0 - _whole(256.0 * jnp.abs(strength))
  ),
  "solarize_add": lambda image, strength: color_uint8.solarize_add(
    image, _whole(110.0 * jnp.abs(strength))
  ),
  "autocontrast": lambda image, strength: color_uint8.autocontrast(image),
  "equalize": lambda image, strength: color_uint8.equalize(image),
  "invert": lambda image, strength: color_uint8.invert(image),
  "identity": lambda image, strength: image,
}
# timm does not choose the identity, which is last in both: it replaces operations not applied.
OPERATIONS = (*list(GEOMETRIC)[:-1], *COLOR)


def operate(
  image: jax.Array,
  operation: jax.Array,
  strength: jax.Array,
  cubic: jax.Array | bool,
  fill: jax.Array,
) -> jax.Array:
  """Applies one operation to an image (H, W, C) of whole numbers 0..255 in float32.

  Under `jax.vmap` a switch computes all its branches, see `autoaugment.operate`.

  Args:
    image: The image (H, W, C).
    operation: The index in `OPERATIONS`.
    strength: The strength in -1..1; operations without a direction take its absolute value.
    cubic: Whether the geometric operations sample bicubically, else bilinearly.
    fill: The color of pixels from outside the image, whole numbers (C,).
  """
  plain = len(GEOMETRIC) - 1
  matrices = [lambda value, f=f: f(value, image.shape[:2]) for f in GEOMETRIC.values()]
  matrix = jax.lax.switch(jnp.minimum(operation, plain), matrices, strength)
  moved = jnp.clip(sampling.sample(image, matrix, cubic, fill), 0.0, 255.0)
  # Pillow truncates interpolated values; float32 may miss a whole number by less than 2^-10.
  image = jnp.floor(moved + 2.0**-10)
  color = jnp.where(operation < plain, len(COLOR) - 1, operation - plain)
  return jax.lax.switch(color, list(COLOR.values()), image, strength)


def increasing(
  key: jax.Array, image: jax.Array, draws: Draws, interpolation: str, mean: Any
) -> jax.Array:
  """Applies operations drawn from timm's 15 increasing ones.

  Args:
    key: The random key of this example and operation.
    image: An image (H, W, C) with values in 0..1, which is first rounded to 8 bits.
    draws: The distribution of the operations and strengths.
    interpolation: One of bilinear, bicubic and random; with random, each operation draws one.
    mean: The mean per channel in 0..1, rounded to 8 bits as the color of pixels from outside.
  """
  operations, strengths, applied = draws(key, len(OPERATIONS) - 1)
  operations = jnp.where(applied, operations, OPERATIONS.index("identity"))
  cubic = jnp.full(draws.count, interpolation == "bicubic")
  if interpolation == "random":
    cubic = jax.random.bernoulli(jax.random.fold_in(key, 4), 0.5, (draws.count,))
  fill = jnp.minimum(jnp.round(255 * jnp.asarray(mean, jnp.float32)), 255)

  def apply(x: jax.Array, draw: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
    operation, strength, one_cubic = draw
    how = False if interpolation == "bilinear" else one_cubic
    return operate(x, operation, strength, how, fill), None

  # A scan compiles the long list of operations only once.
  image, _ = jax.lax.scan(apply, jnp.round(image * 255.0), (operations, strengths, cubic))
  return image / 255.0
