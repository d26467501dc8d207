"""Mean and standard deviation per channel of pixels in 0..1, for normalization."""

import numpy as np

from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings
from vitx.data import order
from vitx.data.dataset import DatasetInfo, Examples
from vitx.data.images.settings import find_channels

Channels = tuple[float, ...]
# Enough training images for three correct decimals.
LARGEST_SAMPLE = 5000

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
    set_mean, set_std = _choose_statistics(info, train)
    mean = set_mean if mean is None else mean
    std = set_std if std is None else std
  mean, std = (tuple(float(value) for value in values) for values in (mean, std))
  if not len(mean) == len(std) == channels or min(std) <= 0:
    raise ConfigError(
      f"data.mean={mean} and data.std={std} must have one value for each of the {channels} channels"
      " of the images, and std must be positive. A constant channel has std 0; set data.std."
    )
  return mean, std


def _choose_statistics(info: DatasetInfo, train: Examples | None) -> tuple[Channels, Channels]:
  """Returns a set's published mean and standard deviation, or computes them from images."""
  known = KNOWN.get(info.name.split("/")[0].split(":")[0])
  if known is not None and len(known[0]) == find_channels(info):
    return known
  if train is None:
    raise ConfigError(
      f"data.mean=None: the training images of {info.name!r} are not read here; set mean and std."
    )
  return compute(train)


def compute(examples: Examples) -> tuple[Channels, Channels]:
  """Computes the mean and standard deviation of each channel from up to 5,000 examples.

  Every image has equal weight, whatever its size. The results are rounded to four decimals, so that
  they do not depend on the version of the JPEG decoder.
  """
  chosen = order.shuffle(0, order.STATISTICS, 0, len(examples))[:LARGEST_SAMPLE]
  moments = []
  for i in chosen.tolist():
    image = examples[i]["image"].astype(np.float64) / 255
    moments.append((image.mean((0, 1)), np.square(image).mean((0, 1))))
  mean, square = np.mean(moments, axis=0)
  std = np.sqrt(np.maximum(square - mean**2, 0))
  return tuple(mean.round(4).tolist()), tuple(std.round(4).tolist())
