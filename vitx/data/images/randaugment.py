"""RandAugment (Cubuk et al. 2019): what it draws, and the "increasing" operations of timm.

The operations of the paper stand in `autoaugment`, which AutoAugment shares. Those of timm, which
DeiT, LV-ViT and their successors train with (`rand-m9-mstd0.5-inc1`), differ: 15 operations, all of
which change the image more at a higher level, levels that vary from operation to operation, other
ranges, positions between pixels, and the mean color where nothing is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from vitx.data.images import color_uint8, image_ops, sampling

TRANSLATION = 0.45  # of the side


@dataclass(frozen=True)
class Draws:
  """What is drawn for an image.

  Attributes:
    count: operations, drawn with replacement.
    magnitude: mean level of each, 0..10.
    magnitude_std: standard deviation of the level, which is clipped to 0..10.
    probability: with which each operation is applied.
  """

  count: int
  magnitude: float
  magnitude_std: float = 0.0
  probability: float = 1.0

  def __call__(self, key: jax.Array, choices: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns which of `choices` operations, strengths, and which are applied, (count,) each.

    A strength in -1..1 is a tenth of the level; its sign is the direction, for the operations that
    have one.
    """
    which, direction = jax.random.split(key)  # the same as folding in 0 and 1
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
  """Returns the value without its fraction, where float32 may miss a whole number by a little."""
  return jnp.floor(value + 2.0**-12)


def _factor(strength: jax.Array) -> jax.Array:
  return jnp.maximum(1.0 + 0.9 * strength, 0.1)


# Matrices for `sampling.sample`, from (strength in -1..1, (height, width)).
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
# The identity, last in both, is no choice of timm's: it stands for what is not applied.
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
    image: (H, W, C).
    operation: index into `OPERATIONS`.
    strength: in -1..1; operations without a direction take its absolute value.
    cubic: whether the geometric operations sample bicubically, else bilinearly.
    fill: (C,), whole numbers, what they show from outside.
  """
  plain = len(GEOMETRIC) - 1
  matrices = [lambda value, f=f: f(value, image.shape[:2]) for f in GEOMETRIC.values()]
  matrix = jax.lax.switch(jnp.minimum(operation, plain), matrices, strength)
  moved = jnp.clip(sampling.sample(image, matrix, cubic, fill), 0.0, 255.0)
  # Pillow truncates what it interpolates; float32 may miss a whole number by less than 2^-10.
  image = jnp.floor(moved + 2.0**-10)
  color = jnp.where(operation < plain, len(COLOR) - 1, operation - plain)
  return jax.lax.switch(color, list(COLOR.values()), image, strength)


def increasing(
  key: jax.Array, image: jax.Array, draws: Draws, interpolation: str, mean: Any
) -> jax.Array:
  """Applies operations drawn from timm's 15 increasing ones.

  Args:
    key: of this example and operation.
    image: (H, W, C) with values 0..1; it is rounded to 8 bits first.
    draws: which, how many, how strong.
    interpolation: bilinear, bicubic, or random: each operation draws one of the two.
    mean: per channel, of pixels in 0..1: what comes in from outside, rounded to 8 bits.
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

  # A scan, so that the long list of operations is compiled once.
  image, _ = jax.lax.scan(apply, jnp.round(image * 255.0), (operations, strengths, cubic))
  return image / 255.0
