"""The operations that RandAugment and AutoAugment share, on images of whole numbers 0..255."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vitx.data.images import color_uint8, image_ops

# A function from (strength, (height, width)) to a matrix for `image_ops.affine`.
Geometry = Callable[[jax.Array, tuple[int, int]], jax.Array]
# A function from (image, strength) to an image.
Change = Callable[[jax.Array, jax.Array], jax.Array]


def make_geometric(pixels: Callable[[jax.Array, int], jax.Array]) -> dict[str, Geometry]:
  """Returns the geometric operations by name, functions from a strength and a size to a matrix.

  Args:
    pixels: A function (strength, side) that returns the length of a translation in pixels.
  """
  matrix = image_ops.stack_matrix
  return {
    "shear_x": lambda strength, size: matrix((1, 0.3 * strength, 0), (0, 1, 0)),
    "shear_y": lambda strength, size: matrix((1, 0, 0), (0.3 * strength, 1, 0)),
    "translate_x": lambda strength, size: matrix((1, 0, pixels(strength, size[1])), (0, 1, 0)),
    "translate_y": lambda strength, size: matrix((1, 0, 0), (0, 1, pixels(strength, size[0]))),
    "rotate": lambda strength, size: image_ops.rotation(30.0 * strength, *size),
    "identity": lambda strength, size: matrix((1, 0, 0), (0, 1, 0)),
  }


IDENTITY: dict[str, Change] = {"identity": lambda image, strength: image}
ENHANCING = {
  f.__name__: lambda image, strength, f=f: f(image, 1.0 + 0.9 * strength)
  for f in (color_uint8.brightness, color_uint8.color, color_uint8.contrast, color_uint8.sharpness)
}
WITHOUT_STRENGTH = {
  f.__name__: lambda image, strength, f=f: f(image)
  for f in (color_uint8.autocontrast, color_uint8.equalize, color_uint8.invert)
}


def operate(
  image: jax.Array,
  geometric: tuple[dict[str, Geometry], jax.Array],
  color: tuple[dict[str, Change], jax.Array],
  strength: jax.Array,
  sample: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
  """Applies one geometric operation and one color operation, chosen by indices.

  One of the two is usually the identity. Under `jax.vmap`, a switch computes all its branches.
  Therefore each geometric operation only computes a matrix, with which the image is sampled once;
  but all color operations are computed for every image.

  Args:
    image: The image (H, W, C), float32.
    geometric: The geometric operations by name, and the index of the one to apply.
    color: The color operations by name, and the index of the one to apply.
    strength: The strength in -1..1; operations without a direction take its absolute value.
    sample: A function from (image, matrix) to the transformed image.
  """
  matrices = [lambda value, f=f: f(value, image.shape[:2]) for f in geometric[0].values()]
  matrix = jax.lax.switch(geometric[1], matrices, strength)
  moved = jnp.clip(sample(image, matrix), 0.0, 255.0)
  # Pillow truncates interpolated values; float32 may miss a whole number by less than 2^-10.
  image = jnp.floor(moved + 2.0**-10)
  return jax.lax.switch(color[1], list(color[0].values()), image, strength)


def apply_in_turn(
  image: jax.Array, draws: tuple[jax.Array, ...], apply: Callable[..., jax.Array]
) -> jax.Array:
  """Applies operations one after another to an image of values 0..1, which is rounded to 8 bits.

  `jax.lax.scan` runs them, so that `apply`, which contains every operation, is compiled only once.

  Args:
    image: The image, (H, W, C).
    draws: The drawn arguments of the operations, (count,) each.
    apply: A function (image, *draw) that applies one operation.
  """

  def step(x: jax.Array, draw: tuple[jax.Array, ...]) -> tuple[jax.Array, Any]:
    return apply(x, *draw), None

  image, _ = jax.lax.scan(step, jnp.round(image * 255.0), draws)
  return image / 255.0
