"""Validation examples as published code chose them, for `data.validation_choice`."""

import re

import numpy as np

from vitx.config.errors import ConfigError
from vitx.data.dataset import Examples

# CIFAR-10's training images in the order of its batch files, and the images held out of them.
_CIFAR, _HELD_OUT, _SEED = 50_000, 2_000, 11172018


def sparse_transformer_cifar10(train: Examples) -> np.ndarray:
  """Chooses the 2,000 images of CIFAR-10 that the Sparse Transformer's code holds out.

  It calls scikit-learn's `train_test_split(test_size=2000, random_state=11172018)` on the images in
  the order of the batch files, which TFDS keeps in an image's name: train_00000 is the first.

  Returns:
    bool (n,): whether each example is held out.

  Raises:
    ConfigError: these are not CIFAR-10's training images.
  """
  matches = [re.fullmatch(r"train_(\d{5})", train.name(i)) for i in range(len(train))]
  numbers = np.array([int(match[1]) for match in matches if match])
  if len(numbers) != _CIFAR or len(np.unique(numbers)) != _CIFAR:
    raise ConfigError(
      "data.validation_choice='sparse_transformer_cifar10' chooses among"
      f" the {_CIFAR:,} training images of TFDS's cifar10 and knows them by name; leave it out for"
      " any other source"
    )
  held_out = np.random.RandomState(_SEED).permutation(_CIFAR)[:_HELD_OUT]
  return np.isin(numbers, held_out)
