import dataclasses

import numpy as np
import pytest

from vitx.data.images.statistics import LARGEST_SAMPLE, compute, statistics
from vitx.data.sources import open_source
from vitx.errors import ConfigError


def test_digits_are_computed_from_train(digits_dir, make_data):
  data = make_data(data_dir=str(digits_dir))
  source = open_source(data, seed=0)
  pixels = np.stack([source.train.image(i) for i in range(len(source.train))]) / 255
  mean, std = statistics(data, source)
  np.testing.assert_allclose(mean, [pixels.mean()], atol=1e-4)
  np.testing.assert_allclose(std, [pixels.std()], atol=1e-4)


def test_well_known_set_needs_no_images(digits_dir, make_data):
  data = make_data(data_dir=str(digits_dir))
  source = open_source(data, seed=0)
  known = dataclasses.replace(source, name="imagenette/160px-v2", channels=3, train=None)
  assert statistics(data, known) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_given_values_win(digits_dir, make_data):
  data = make_data(data_dir=str(digits_dir), mean=(0.5,))
  source = open_source(data, seed=0)
  mean, std = statistics(data, source)
  assert mean == (0.5,) and 0.3 < std[0] < 0.5


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"mean": (0.5, 0.5, 0.5)}, r"data\.mean=.*3 values for 1 channels"),
    ({"std": ()}, r"data\.std=.*0 values"),
    ({"std": (0.0,)}, r"data\.std=.*positive"),
  ],
)
def test_bad_values(digits_dir, make_data, change, message):
  data = make_data(data_dir=str(digits_dir), **change)
  with pytest.raises(ConfigError, match=message):
    statistics(data, open_source(data, seed=0))


def test_large_sets_are_sampled_and_images_count_the_same_whatever_their_size():
  class Flat:
    """Even examples are small and black, odd ones large and white."""

    seen = 0

    def __len__(self):
      return 3 * LARGEST_SAMPLE

    def image(self, i):
      self.seen += 1
      return np.full((2 + 6 * (i % 2),) * 2 + (1,), 255 * (i % 2), np.uint8)

  examples = Flat()
  (mean,), (std,) = compute(examples)
  assert examples.seen == LARGEST_SAMPLE
  assert abs(mean - 0.5) < 0.03 and abs(std - 0.5) < 0.01
  assert compute(examples) == ((mean,), (std,))
