"""RandAugment (Cubuk et al. 2019) and the CIFAR policy of AutoAugment (Cubuk et al. 2018).

Both apply operations of one list, `OPERATIONS`, to an 8-bit image. The strength of an operation is
in -1..1; its sign is the direction. An absolute strength of 1 is the largest magnitude in the
papers: a shear of 0.3, a translation by 150/331 of the side, a rotation by 30 degrees, a factor of
0.1 or 1.9 for brightness, color, contrast and sharpness, 4 bits for posterize, and the threshold 0
for solarize. Pixels from outside the image are black.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from vitx.data.images import color_uint8, image_ops, operations
from vitx.data.images.randaugment import Sampler

TRANSLATION = 150 / 331  # 150 pixels of ImageNet images with side 331 in the papers


GEOMETRIC = operations.make_geometric(
  lambda strength, side: jnp.trunc(TRANSLATION * side * strength)
)
COLOR: dict[str, operations.Change] = {
  **operations.IDENTITY,
  **operations.ENHANCING,
  "posterize": lambda image, strength: color_uint8.posterize(
    image, 8.0 - jnp.round(4.0 * jnp.abs(strength))
  ),
  "solarize": lambda image, strength: color_uint8.solarize(
    image, 256.0 * (1.0 - jnp.abs(strength))
  ),
  **operations.WITHOUT_STRENGTH,
}
OPERATIONS = (*GEOMETRIC, *(name for name in COLOR if name != "identity"))
RANDAUGMENT = len(OPERATIONS) - 1  # RandAugment draws from the first 14, without invert

# 25 pairs of (operation, probability, level 0..9), in the order of the paper's table.
CIFAR_POLICY = (
  (("invert", 0.1, 0), ("contrast", 0.2, 6)),
  (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
  (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
  (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
  (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
  (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
  (("color", 0.4, 3), ("brightness", 0.6, 7)),
  (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
  (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
  (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
  (("color", 0.7, 7), ("translate_x", 0.5, 8)),
  (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
  (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
  (("brightness", 0.9, 6), ("color", 0.2, 8)),
  (("solarize", 0.5, 2), ("invert", 0.0, 0)),
  (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
  (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
  (("color", 0.9, 9), ("equalize", 0.6, 0)),
  (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
  (("brightness", 0.1, 3), ("color", 0.7, 0)),
  (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
  (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
  (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
  (("equalize", 0.8, 0), ("invert", 0.1, 0)),
  (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)


def operate(
  image: jax.Array, operation: jax.Array, strength: jax.Array, interpolation: str
) -> jax.Array:
  """Applies one operation to an image (H, W, C) of whole numbers 0..255 in float32.

  Args:
    image: The image (H, W, C).
    operation: The index in `OPERATIONS`.
    strength: The strength in -1..1; operations without a direction take its absolute value.
    interpolation: The interpolation of the geometric operations: bilinear, bicubic or nearest.
  """
  plain = len(GEOMETRIC) - 1  # the identity: last in GEOMETRIC and first in COLOR
  geometric, color = jnp.minimum(operation, plain), jnp.maximum(operation - plain, 0)

  def sample(x: jax.Array, matrix: jax.Array) -> jax.Array:
    return image_ops.affine(x, matrix, interpolation)

  return operations.operate(image, (GEOMETRIC, geometric), (COLOR, color), strength, sample)


def randaugment(key: jax.Array, image: jax.Array, draw: Sampler, interpolation: str) -> jax.Array:
  """Applies operations that are drawn with replacement from RandAugment's 14.

  Args:
    key: The random key of this example and operation.
    image: An image (H, W, C) with values in 0..1, which is first rounded to 8 bits.
    draw: The distribution of the operations and strengths. Its magnitudes 0..10 correspond to
      0..30 in torchvision.
    interpolation: One of bilinear, bicubic and nearest.
  """
  which, strengths, applied = draw(key, RANDAUGMENT)
  which = jnp.where(applied, which, OPERATIONS.index("identity"))
  return _sequence(image, which, strengths, interpolation)


def autoaugment(key: jax.Array, image: jax.Array, interpolation: str) -> jax.Array:
  """Applies one of the CIFAR policy's 25 pairs of operations, drawn at random.

  Each operation of the pair is applied with a probability of its own.

  Args:
    key: The random key of this example and operation.
    image: An image (H, W, C) with values in 0..1, which is first rounded to 8 bits.
    interpolation: One of bilinear, bicubic and nearest.
  """
  names, probabilities, levels = np.moveaxis(np.asarray(CIFAR_POLICY, dtype=object), -1, 0)
  table = np.vectorize(OPERATIONS.index, otypes=[np.int32])(names)
  pair_key, chance, direction = jax.random.split(key, 3)
  pair = jax.random.randint(pair_key, (), 0, len(CIFAR_POLICY))
  applied = jax.random.uniform(chance, (2,)) < jnp.asarray(probabilities.astype(np.float32))[pair]
  which = jnp.where(applied, jnp.asarray(table)[pair], OPERATIONS.index("identity"))
  strengths = jnp.asarray(levels.astype(np.float32) / 9)[pair]
  strengths = strengths * jax.random.rademacher(direction, (2,), jnp.float32)
  return _sequence(image, which, strengths, interpolation)


def _sequence(
  image: jax.Array, which: jax.Array, strengths: jax.Array, interpolation: str
) -> jax.Array:
  apply = functools.partial(operate, interpolation=interpolation)
  return operations.apply_in_turn(image, (which, strengths), apply)
