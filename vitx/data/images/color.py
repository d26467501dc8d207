"""Color jitter of one float image (S, S, C) with values 0..1, in torchvision's semantics."""

import jax
import jax.numpy as jnp
import numpy as np

LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601-2, rounded as torchvision rounds it


def gray(image: jax.Array) -> jax.Array:
  """Returns the luma (H, W, 1) of an image with 3 channels, or the one channel itself."""
  if image.shape[-1] == 1:
    return image
  return jnp.sum(image * np.asarray(LUMA, np.float32).reshape(1, 1, 3), axis=-1, keepdims=True)


def brightness(image: jax.Array, factor: jax.Array) -> jax.Array:
  """Multiplies the image by the factor: 0 is black, 1 the image."""
  return jnp.clip(image * factor, 0.0, 1.0)


def contrast(image: jax.Array, factor: jax.Array) -> jax.Array:
  """Scales the distance from the mean luma of the image: 0 is plain gray, 1 the image."""
  return jnp.clip(factor * image + (1.0 - factor) * jnp.mean(gray(image)), 0.0, 1.0)


def saturation(image: jax.Array, factor: jax.Array) -> jax.Array:
  """Scales the distance of each pixel from its luma: 0 is a gray image, 1 the image."""
  return jnp.clip(factor * image + (1.0 - factor) * gray(image), 0.0, 1.0)


def hue(image: jax.Array, shift: jax.Array) -> jax.Array:
  """Turns the hue by `shift` full circles, keeping HSV saturation and value. Needs 3 channels."""
  value = jnp.max(image, axis=-1)
  chroma = value - jnp.min(image, axis=-1)
  red, green, blue = image[..., 0], image[..., 1], image[..., 2]
  safe = jnp.where(chroma > 0, chroma, 1.0)
  # Not `value == red`: a compiler may compute the two sides apart, with other roundings. Where two
  # channels are nearly equal, either of their formulas gives the same hue.
  sixth = jnp.where(
    (red >= green) & (red >= blue),
    (green - blue) / safe,
    jnp.where(green >= blue, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe),
  )
  # Back from HSV in one formula: a channel is the value less the chroma times a trapezium of hue.
  phase = sixth[..., None] + 6.0 * shift + np.asarray((5.0, 3.0, 1.0), np.float32).reshape(1, 1, 3)
  phase = jnp.mod(phase, 6.0)
  fall = jnp.clip(jnp.minimum(phase, 4.0 - phase), 0.0, 1.0)
  return value[..., None] - chroma[..., None] * fall


def jitter(key: jax.Array, image: jax.Array, amounts: tuple[float, ...]) -> jax.Array:
  """Changes brightness, contrast, saturation and hue, always in this order.

  torchvision shuffles the order; under `jax.vmap` every order would be computed for every example.

  Args:
    key: of this example and operation.
    image: (S, S, C) with values 0..1.
    amounts: the first three draw a factor in max(0, 1 - amount)..1 + amount; the last a turn of the
      hue in -amount..amount. An amount of 0 skips the operation.
  """
  draws = jax.random.uniform(key, (4,))
  for draw, amount, change in zip(
    draws[:3], amounts[:3], (brightness, contrast, saturation), strict=True
  ):
    if amount:
      low = max(0.0, 1.0 - amount)
      image = change(image, low + (1.0 + amount - low) * draw)
  if amounts[3]:
    image = hue(image, amounts[3] * (2.0 * draws[3] - 1.0))
  return image
