"""The color operations of RandAugment and AutoAugment, as Pillow defines them for 8-bit images.

Each function takes and returns one image (H, W, C) of whole numbers 0..255 in float32, and rounds
where Pillow does (`ImageOps`, `ImageEnhance`), so that the results can be compared exactly.
"""

import jax
import jax.numpy as jnp


def invert(image: jax.Array) -> jax.Array:
  """Returns the negative of an image."""
  return 255.0 - image


def solarize(image: jax.Array, threshold: jax.Array) -> jax.Array:
  """Inverts the values at or above the threshold (256 inverts nothing)."""
  return jnp.where(image < threshold, image, 255.0 - image)


def solarize_add(image: jax.Array, amount: jax.Array) -> jax.Array:
  """Adds an amount to the values below 128, up to 255."""
  return jnp.where(image < 128, jnp.minimum(image + amount, 255.0), image)


def posterize(image: jax.Array, bits: jax.Array) -> jax.Array:
  """Keeps the highest `bits` (a whole number) of the 8 bits of each value."""
  step = jnp.exp2(8.0 - bits)
  return jnp.floor(image / step) * step


def autocontrast(image: jax.Array) -> jax.Array:
  """Stretches each channel to 0..255; a channel of one value stays unchanged."""
  values = image.astype(jnp.int32)
  low = jnp.min(values, axis=(0, 1), keepdims=True)
  span = jnp.max(values, axis=(0, 1), keepdims=True) - low
  stretched = (values - low) * 255 // jnp.maximum(span, 1)
  return jnp.where(span > 0, stretched, values).astype(jnp.float32)


def equalize(image: jax.Array) -> jax.Array:
  """Equalizes the histogram of each channel.

  As in Pillow, each new value is given to about s pixels. Here s is the number of pixels below the
  channel's highest value, divided by 255 and rounded down. If s is 0, as in every image of fewer
  than 256 pixels, the channel stays unchanged.
  """
  H, W, C = image.shape
  values = image.astype(jnp.int32).reshape(H * W, C)
  channel = jnp.arange(C)[None, :]
  counts = jnp.zeros((256, C), jnp.int32).at[values, channel].add(1, mode="promise_in_bounds")
  below = jnp.cumsum(counts, axis=0) - counts
  highest = jnp.max(values, axis=0)
  step = below.at[highest, channel[0]].get(mode="promise_in_bounds")[None, :] // 255
  table = jnp.minimum((step // 2 + below) // jnp.maximum(step, 1), 255)
  equalized = table.at[values, channel].get(mode="promise_in_bounds")
  return jnp.where(step > 0, equalized, values).astype(jnp.float32).reshape(H, W, C)


def brightness(image: jax.Array, factor: jax.Array) -> jax.Array:
  """Blends with black: factor 0 gives black, 1 the image."""
  return _blend(jnp.zeros_like(image), image, factor)


def color(image: jax.Array, factor: jax.Array) -> jax.Array:
  """Blends with gray: factor 0 gives gray, 1 the image; a gray image does not change."""
  return _blend(_luma(image), image, factor)


def contrast(image: jax.Array, factor: jax.Array) -> jax.Array:
  """Blends with the mean luma: factor 0 gives plain gray, 1 the image."""
  mean = jnp.floor(jnp.mean(_luma(image), keepdims=True) + 0.5)
  return _blend(mean, image, factor)


def sharpness(image: jax.Array, factor: jax.Array) -> jax.Array:
  """Blends with the smoothed image: factor 0 gives the smoothed image, 1 the image.

  The smoothing kernel is 3x3: ones, with 5 in the center. The border of the image is not smoothed.
  """
  rows = image[:-2] + image[1:-1] + image[2:]
  inner = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4.0 * image[1:-1, 1:-1]
  smooth = image.at[1:-1, 1:-1].set(jnp.floor(inner / 13.0 + 0.5))
  return _blend(smooth, image, factor)


def _blend(start: jax.Array, image: jax.Array, factor: jax.Array) -> jax.Array:
  return jnp.floor(jnp.clip(start + factor * (image - start), 0.0, 255.0))


def _luma(image: jax.Array) -> jax.Array:
  """Returns the brightness of each pixel, (H, W, 1), as Pillow computes it with integers."""
  if image.shape[-1] == 1:
    return image
  red, green, blue = (image[..., i].astype(jnp.int32) for i in range(3))
  luma = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
  return luma.astype(jnp.float32)[..., None]
