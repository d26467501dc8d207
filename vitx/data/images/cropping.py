"""Random crops and random erasing of one float image (H, W, C)."""

import math

import jax
import jax.numpy as jnp

from vitx.data.images import image_ops

CROP_RATIO = (3 / 4, 4 / 3)  # width / height of a random resized crop (Szegedy et al. 2015)
# Zhong et al. 2017, settings of the image classification experiments.
ERASED_AREA = (0.02, 0.33)
ERASED_RATIO = (0.3, 3.3)
# The settings of timm, and so of DeiT: share of the area, height / width, attempts at a box.
NOISE_AREA = (0.02, 1 / 3)
NOISE_RATIO = (0.3, 1 / 0.3)
NOISE_ATTEMPTS = 10


def pad_crop(key: jax.Array, image: jax.Array, padding: int) -> jax.Array:
  """Pads all sides with `padding` zeros, and crops to the old size at a uniform random offset."""
  padded = jnp.pad(image, ((padding, padding), (padding, padding), (0, 0)))
  top, left = jax.random.randint(key, (2,), 0, 2 * padding + 1)
  return jax.lax.dynamic_slice(padded, (top, left, jnp.zeros_like(top)), image.shape)


def random_resized_crop(
  key: jax.Array,
  image: jax.Array,
  area: tuple[float, float],
  size: tuple[int, int],
  interpolation: str,
) -> jax.Array:
  """Cuts a random box out of an image and resizes it to `size`, (height, width).

  The area of the box is a share of the image's area, in the range `area`. Its width / height is in
  3/4..4/3.
  """
  box = _pixels(random_box(key, area, _shares(CROP_RATIO, image)), image)
  return image_ops.crop_resize(image, box, size, interpolation)


def _shares(ratio: tuple[float, float], image: jax.Array) -> tuple[float, float]:
  """Converts a range of width / height from pixels to shares of the image's sides."""
  aspect = image.shape[1] / image.shape[0]
  return ratio[0] / aspect, ratio[1] / aspect


def _pixels(box: tuple[jax.Array, ...], image: jax.Array) -> tuple[jax.Array, ...]:
  """Converts (top, left, height, width) from shares of the image's sides to pixels."""
  H, W, _ = image.shape
  return tuple(share * side for share, side in zip(box, (H, W, H, W), strict=True))


def random_erasing(key: jax.Array, image: jax.Array, probability: float) -> jax.Array:
  """Sets a random box to zero with the given probability (Zhong et al. 2017).

  The image is already normalized, so zero is the mean of the data set. A pixel is erased if its
  center is in the box; in an image of a few pixels the box may contain no center.
  """
  chosen, place = jax.random.split(key)
  drawn = random_box(place, ERASED_AREA, _shares(ERASED_RATIO, image))
  centers = (jnp.arange(side, dtype=jnp.float32) + 0.5 for side in image.shape[:2])
  inside = image_ops.box_mask(_pixels(drawn, image), *centers)
  return jnp.where(inside & jax.random.bernoulli(chosen, probability), 0.0, image)


def noise_erasing(key: jax.Array, image: jax.Array, probability: float) -> jax.Array:
  """Fills a random box with normal noise, with the given probability, as timm's mode "pixel" does.

  The image is already normalized. The noise of each pixel and channel is drawn independently
  (Touvron et al. 2021, appendix A).
  """
  chosen, place, noise = jax.random.split(key, 3)
  draws = jax.random.uniform(place, (NOISE_ATTEMPTS, 4))
  inside = image_ops.box_mask(fit_box(draws, *image.shape[:2]), *map(jnp.arange, image.shape[:2]))
  erased = inside & jax.random.bernoulli(chosen, probability)
  return jnp.where(erased, jax.random.normal(noise, image.shape), image)


def fit_box(draws: jax.Array, H: int, W: int) -> tuple[jax.Array, ...]:
  """Returns the box that is filled with noise, in whole pixels, as in timm's random erasing.

  Each attempt gives a box. The first box that is smaller than the image is taken.

  Args:
    draws: The random numbers in [0, 1) for area, ratio, top and left, (attempts, 4).
    H: The height of the image.
    W: The width of the image.

  Returns:
    The int32 scalars top, left, height, width; height and width are 0 if no attempt fits.
  """
  share = NOISE_AREA[0] + (NOISE_AREA[1] - NOISE_AREA[0]) * draws[:, 0]
  low, high = (math.log(ratio) for ratio in NOISE_RATIO)
  ratio = jnp.exp(low + (high - low) * draws[:, 1])
  size = math.sqrt(H * W)  # the side of a square of equal area
  heights = jnp.round(size * jnp.sqrt(share * ratio)).astype(jnp.int32)
  widths = jnp.round(size * jnp.sqrt(share / ratio)).astype(jnp.int32)
  fits = (heights < H) & (widths < W)
  first = jnp.argmax(fits)
  height, width = (jnp.where(fits[first], sides[first], 0) for sides in (heights, widths))
  top, left = (
    (draws[first, which] * (whole - side + 1).astype(jnp.float32)).astype(jnp.int32)
    for which, whole, side in ((2, H, height), (3, W, width))
  )
  return top, left, height, width


def random_box(
  key: jax.Array, area: tuple[float, float], ratio: tuple[float, float]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Draws a box inside the unit square.

  The area is uniform in the range `area`; in a long image, whose range `ratio` does not contain 1,
  an area for which no ratio fits becomes the largest that fits. The logarithm of width / height is
  uniform in the part of the range `ratio` in which the box fits into the square. The usual loop,
  which draws until a box fits, can draw exactly these boxes too, but slightly favors small boxes
  and needs a fallback.

  Args:
    key: The random key.
    area: The smallest and the largest area, as shares of the square.
    ratio: The smallest and the largest width / height.

  Returns:
    The (top, left, height, width) as shares of the square's side.
  """
  area_draw, ratio_draw, row, column = jax.random.uniform(key, (4,))
  area_share = area[0] + (area[1] - area[0]) * area_draw
  # A box of area a and ratio r is sqrt(a / r) high and sqrt(a r) wide: it fits if a <= r <= 1 / a.
  area_share = jnp.minimum(area_share, min(ratio[1], 1 / ratio[0]))
  low = jnp.log(jnp.maximum(ratio[0], area_share))
  high = jnp.log(jnp.minimum(ratio[1], 1.0 / area_share))
  shape = jnp.exp(low + (high - low) * ratio_draw)
  height = jnp.minimum(jnp.sqrt(area_share / shape), 1.0)
  width = jnp.minimum(jnp.sqrt(area_share * shape), 1.0)
  return row * (1.0 - height), column * (1.0 - width), height, width
