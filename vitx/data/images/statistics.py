"""Mean and standard deviation per channel of pixels in 0..1, for normalization."""

import numpy as np
from PIL import Image

from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings
from vitx.data import order
from vitx.data.dataset import DatasetInfo, Examples
from vitx.data.images.settings import find_channels
from vitx.data.in_memory import SharedSplit, find_problems, find_split, raise_all

Channels = tuple[float, ...]
# Enough training images for three correct decimals.
LARGEST_SAMPLE = 5000
LEVELS = np.arange(256) / 255  # the values of a pixel
# Enough images for the covariance of small patches, of which each image has hundreds.
WHITENED_SAMPLE = 500
SMALLEST_VARIANCE = 5e-4  # added to the variances of patches, as in Jordan's code

# The values in published recipes: torchvision's for ImageNet and its subsets; for other sets the
# statistics of the training set, as in pytorch-cifar and the PyTorch MNIST example.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
KNOWN: dict[str, tuple[Channels, Channels]] = {
  "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
  "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
  "fashion_mnist": ((0.2860,), (0.3530,)),
  "imagenet2012": _IMAGENET,
  "imagenette": _IMAGENET,
  "imagewoof": _IMAGENET,
  "mnist": ((0.1307,), (0.3081,)),
  "svhn_cropped": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
  "tiny_imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
}


def statistics(
  data: DataSettings, info: DatasetInfo, train: Examples | None = None
) -> tuple[Channels, Channels]:
  """Returns the mean and standard deviation of the pixels of each channel, for normalization.

  They are `data.mean` and `data.std` if these are set, otherwise the published constants of a
  well-known set, otherwise computed from up to 5,000 training images. Computed values depend on the
  seed only if splits are carved from train.

  Args:
    data: The config's `data`.
    info: The facts about the data set.
    train: The training examples; None if they are not to be read.
  """
  mean, std, channels = data.mean, data.std, find_channels(info)
  if mean is None or std is None:
    set_mean, set_std = _choose_statistics(info, train, data.threads)
    mean = set_mean if mean is None else mean
    std = set_std if std is None else std
  mean, std = (tuple(float(value) for value in values) for values in (mean, std))
  if not len(mean) == len(std) == channels or min(std) <= 0:
    raise ConfigError(
      f"data.mean={mean} and data.std={std} must have one value for each of the {channels} channels"
      " of the images, and std must be positive. A constant channel has std 0; set data.std."
    )
  return mean, std


def _choose_statistics(
  info: DatasetInfo, train: Examples | None, threads: int
) -> tuple[Channels, Channels]:
  """Returns a set's published mean and standard deviation, or computes them from images."""
  name, _, version = info.name.partition("/")[0].partition(":")  # a colon may also precede code
  known = None if version.isidentifier() else KNOWN.get(name)
  if known is not None and len(known[0]) == find_channels(info):
    return known
  if train is None:
    raise ConfigError(
      f"data.mean=None: the training images of {info.name!r} are not read here; set mean and std."
    )
  return compute(train, threads)


def sample(examples: Examples, most: int) -> list[int]:
  """Draws the indices of up to `most` examples, which do not depend on a seed."""
  return order.shuffle(0, order.STATISTICS, 0, len(examples))[:most].tolist()


def whiten(images: np.ndarray, side: int) -> np.ndarray:
  """Computes the kernel of a convolution that whitens the patches of images.

  The kernel has the eigenvectors of the covariance of all patches of side x side pixels, the one
  of largest variance first. Each is divided by the square root of its variance + 0.0005, and
  occurs with both signs (Jordan 2024, arXiv 2404.00498, section 3.2).

  Args:
    images: Normalized images, (n, height, width, C).
    side: The side of the patches.

  Returns:
    The kernel, float32 (side, side, C, 2 side^2 C).
  """
  size = side**2 * images.shape[-1]
  count, total, moments = 0, np.zeros(size), np.zeros((size, size))
  for image in images:
    windows = np.lib.stride_tricks.sliding_window_view(image, (side, side), axis=(0, 1))
    patches = np.moveaxis(windows, 2, 4).reshape(-1, size).astype(np.float64)
    count, total, moments = (
      count + len(patches),
      total + patches.sum(0),
      moments + patches.T @ patches,
    )
  mean = total / count
  variances, vectors = np.linalg.eigh(moments / count - np.outer(mean, mean))
  scaled = (vectors / np.sqrt(variances + SMALLEST_VARIANCE))[:, ::-1]
  kernel = np.concatenate([scaled, -scaled], axis=1).astype(np.float32)
  return kernel.reshape(side, side, images.shape[-1], 2 * size)


def compute(examples: Examples, threads: int = 1) -> tuple[Channels, Channels]:
  """Computes the mean and standard deviation of each channel from up to 5,000 examples.

  Every image has equal weight, whatever its size. The results are rounded to four decimals, so that
  they do not depend on the version of the JPEG decoder.
  """
  split, indices = find_split(examples)
  moments = split.moments if isinstance(split, SharedSplit) else {}
  chosen = sample(examples, LARGEST_SAMPLE)
  missing = [i for i in chosen if indices[i] not in moments]

  def measure(number: int) -> None:
    i = missing[number]
    moments[indices[i]] = _measure(examples[i]["image"])

  raise_all([*find_problems(measure, len(missing), threads).values()])
  mean, square = np.mean([moments[indices[i]] for i in chosen], axis=0)
  std = np.sqrt(np.maximum(square - mean**2, 0))
  return tuple(mean.round(4).tolist()), tuple(std.round(4).tolist())


def _measure(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the mean and the mean square of each channel of an image (height, width, C)."""
  # A photo of a phone would need 300 MB as an array of floats; Pillow counts its values at once.
  channels = [Image.fromarray(np.ascontiguousarray(x)) for x in np.moveaxis(pixels, -1, 0)]
  shares = np.array([x.histogram() for x in channels]) / channels[0].size[0] / channels[0].size[1]
  return shares @ LEVELS, shares @ LEVELS**2
