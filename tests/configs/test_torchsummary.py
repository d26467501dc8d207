"""torchsummary's sizes of the Vision X-formers agree with every size that the paper prints."""

import pytest

from configs import vix_cifar10, vix_tiny_imagenet
from configs._torchsummary import estimate_size

PRINTED = [
  (file, row, side)
  for file, side in ((vix_cifar10, 32), (vix_tiny_imagenet, 64))
  for row, figures in file.PUBLISHED.items()
  if "size_mb" in figures
]


def test_every_printed_size_is_tested():
  assert len(PRINTED) == 54
  assert sum("size_mb" in file.MISPRINTS.get(row, {}) for file, row, _ in PRINTED) == 1


@pytest.mark.parametrize(("file", "row", "side"), PRINTED, ids=lambda value: str(value)[-40:])
def test_the_estimate_equals_the_printed_size(file, row, side):
  figures = file.PUBLISHED[row] | file.MISPRINTS.get(row, {})
  model = file.get_config(row).model.to_dict()
  assert estimate_size(model, side, figures["parameters"]) == figures["size_mb"]


def test_the_size_of_a_config_is_estimated():
  config = vix_cifar10.get_config("hybrid_vin")
  assert vix_cifar10.COMPUTED["size_mb"](config, 623_706) == 88.7
