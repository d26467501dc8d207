"""Color jitter of one float image (H, W, C) with values in 0..1, as in torchvision."""

import jax
import jax.numpy as jnp
import numpy as np

LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601-2, rounded as torchvision rounds it


def gray(image: jax.Array) -> jax.Array:
  """Returns the brightness (luma) of each pixel, (H, W, 1); for one channel the image itself."""
  if image.shape[-1] == 1:
    return image
  return jnp.sum(image * np.asarray(LUMA, np.float32).reshape(1, 1, 3), axis=-1, keepdims=True)


def brightness(image: jax.Array, factor: jax.Array) -> jax.Array:
  """Multiplies the image by the factor: 0 gives black, 1 the image."""
  return jnp.clip(image * factor, 0.0, 1.0)


def contrast(image: jax.Array, factor: jax.Array) -> jax.Array:
  """Scales each value's distance from the mean luma: 0 gives plain gray, 1 the image."""
  return jnp.clip(factor * image + (1.0 - factor) * jnp.mean(gray(image)), 0.0, 1.0)


def saturation(image: jax.Array, factor: jax.Array) -> jax.Array:
  """Scales the distance of each pixel from its luma: 0 gives a gray image, 1 the image."""
  return jnp.clip(factor * image + (1.0 - factor) * gray(image), 0.0, 1.0)


def hue(image: jax.Array, shift: jax.Array) -> jax.Array:
  """Rotates the hue by `shift` full circles, keeping HSV saturation and value; C must be 3."""
  value = jnp.max(image, axis=-1)
  chroma = value - jnp.min(image, axis=-1)
  red, green, blue = image[..., 0], image[..., 1], image[..., 2]
  safe = jnp.where(chroma > 0, chroma, 1.0)
  # A test `value == red` is unsafe, as a compiler may round the two sides differently. If two
  # channels are nearly equal, both of their formulas give an equal hue.
  sixth = jnp.where(
    (red >= green) & (red >= blue),
    (green - blue) / safe,
    jnp.where(green >= blue, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe),
  )
  # One formula converts back from HSV: a channel is value - chroma * a trapezium function of hue.
  phase = sixth[..., None] + 6.0 * shift + np.asarray((5.0, 3.0, 1.0), np.float32).reshape(1, 1, 3)
  phase = jnp.mod(phase, 6.0)
  fall = jnp.clip(jnp.minimum(phase, 4.0 - phase), 0.0, 1.0)
  return value[..., None] - chroma[..., None] * fall


def jitter(key: jax.Array, image: jax.Array, amounts: tuple[float, ...]) -> jax.Array:
  """Changes brightness, contrast, saturation and hue, always in this order.

  torchvision draws the order at random. Under `jax.vmap` that would compute every order for every
  example.

  Args:
    key: The random key of this example and operation.
    image: The image (H, W, C) with values in 0..1.
    amounts: The four amounts. The first three draw a factor in max(0, 1 - amount)..1 + amount; the
      last draws a rotation of the hue in -amount..amount. An amount of 0 skips the operation.
  """
  draws = jax.random.uniform(key, (4,))
  for i, change in enumerate((brightness, contrast, saturation)):
    if amounts[i]:
      low = max(0.0, 1.0 - amounts[i])
      image = change(image, low + (1.0 + amounts[i] - low) * draws[i])
  if amounts[3]:
    image = hue(image, amounts[3] * (2.0 * draws[3] - 1.0))
  return image
