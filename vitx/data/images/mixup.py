"""Label smoothing, and mixing of pairs: mixup (Zhang et al. 2017) and CutMix (Yun et al. 2019).

Rows 2p and 2p + 1 of the global batch are a pair, whose images are mixed with each other. Both rows
are on one device, so mixing needs no communication and does not depend on the number of devices.
timm mixes row i with row B-1-i instead, which is equivalent in a shuffled batch. If `data.repeats`
puts copies of an example into a batch, `order.places` arranges the rows so that the rows that timm
would mix are neighbors.
"""

import functools

import jax
import jax.numpy as jnp

from vitx.data.images import image_ops


def smooth_targets(labels: jax.Array, num_classes: int, smoothing: float) -> jax.Array:
  """Smooths labels to targets: (1 - smoothing) * one-hot + smoothing / num_classes.

  Args:
    labels: The classes, int32 (B,). If images may have several classes, the labels are 0 or 1 for
      each class, (B, num_classes), and become (1 - smoothing) * labels + smoothing / 2.
    num_classes: The number of classes.
    smoothing: The strength of label smoothing in 0..1; 0 is off.

  Returns:
    The targets, float32 (B, num_classes).
  """
  if labels.ndim == 2:
    return (1.0 - smoothing) * labels + smoothing / 2
  return (1.0 - smoothing) * jax.nn.one_hot(labels, num_classes) + smoothing / num_classes


def unsmooth_targets(targets: jax.Array, smoothing: float, uniform: float) -> jax.Array:
  """Returns the labels, mixed or not, from which `smooth_targets` made targets, (B, K) both.

  Mixing is linear, so mixed targets give the mixture of their labels. `uniform` is the target at
  full smoothing: 1 / K for one class of K, 1/2 for several classes.
  """
  return (targets - smoothing * uniform) / (1.0 - smoothing)


def mix(
  images: jax.Array, targets: jax.Array, keep: jax.Array, share: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Mixes the images and the targets of the rows 2p and 2p + 1 with each other.

  Args:
    images: The normalized images (B, height, width, C); B is even.
    targets: The targets (B, K).
    keep: The weights of each row's own pixels, (B, height, width, 1), equal within a pair; or (1,
      height, width, 1) for all pairs. The pixels of the other row of the pair have weight 1 - keep.
    share: The weight of each row's own target, (B,) or (1,).

  Returns:
    The mixed images and targets.
  """
  images = keep * images + (1.0 - keep) * _swap(images)
  share = share[:, None]
  return images, share * targets + (1.0 - share) * _swap(targets)


def _swap(values: jax.Array) -> jax.Array:
  """Exchanges the two members of each pair along the first axis."""
  return values.reshape(-1, 2, *values.shape[1:])[:, ::-1].reshape(values.shape)


def draw(
  key: jax.Array, *, size: tuple[int, int], mixup: float, cutmix: float
) -> tuple[jax.Array, jax.Array]:
  """Draws the weights for `mix`, of a pair of rows or of a batch.

  Args:
    key: The random key of the pair or the batch.
    size: The (height, width) of the images.
    mixup: The alpha of Beta(alpha, alpha), from which the weight of a row's own image is drawn; 0
      is off.
    cutmix: The alpha of Beta(alpha, alpha), from which the kept share of a row's own image is
      drawn; 0 is off. If mixup is on too, one of the two is drawn, each with probability 1/2.

  Returns:
    The weights of a row's own pixels, (height, width, 1), and the weight of its own target, which
    is the mean of the pixels' weights.
  """
  mixup_key, cutmix_key, choice = jax.random.split(key, 3)
  if not cutmix:
    return _mixup(mixup_key, size, mixup)
  if not mixup:
    return _cutmix(cutmix_key, size, cutmix)
  blended, cut = _mixup(mixup_key, size, mixup), _cutmix(cutmix_key, size, cutmix)
  return jax.tree.map(functools.partial(jnp.where, jax.random.bernoulli(choice)), blended, cut)


def _mixup(key: jax.Array, size: tuple[int, int], alpha: float) -> tuple[jax.Array, jax.Array]:
  share = jax.random.beta(key, alpha, alpha, dtype=jnp.float32)
  return jnp.broadcast_to(share, (*size, 1)), share


def _cutmix(key: jax.Array, size: tuple[int, int], alpha: float) -> tuple[jax.Array, jax.Array]:
  share_key, place = jax.random.split(key)
  share = jax.random.beta(share_key, alpha, alpha, dtype=jnp.float32)
  # As in the paper, the center is uniform over the image and the box is cut off at the edge.
  return keep_around(jax.random.randint(place, (2,), 0, jnp.asarray(size)), share, size)


def keep_around(
  center: jax.Array, share: jax.Array, size: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
  """Returns the weights of a row's own pixels in CutMix: 0 in a box, 1 around it.

  Args:
    center: The row and the column of the center of the box, int32 (2,). The box has the aspect
      ratio of the image.
    share: The share of the area that is kept if the box is wholly inside the image.
    size: The (height, width) of the images.

  Returns:
    The weights, (height, width, 1), and their mean.
  """
  down, across = ((side * jnp.sqrt(1.0 - share)).astype(jnp.int32) for side in size)
  box = center[0] - down // 2, center[1] - across // 2, down, across
  cut = image_ops.box_mask(box, *map(jnp.arange, size))
  return jnp.where(cut, 0.0, 1.0), 1.0 - jnp.sum(cut, dtype=jnp.float32) / (size[0] * size[1])
