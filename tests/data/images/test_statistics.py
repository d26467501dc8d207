import jax
import numpy as np
import pytest

from vitx.config.errors import ConfigError
from vitx.data.dataset import DatasetInfo, Subset
from vitx.data.images.settings import image_spec
from vitx.data.images.statistics import LARGEST_SAMPLE, compute, statistics, whiten
from vitx.data.in_memory import SharedSplit
from vitx.data.sources import open_source


def test_digits_are_computed_from_train(data_dir, make_data):
  data = make_data(data_dir=str(data_dir))
  source = open_source(data, seed=0)
  pixels = np.stack([source.train[i]["image"] for i in range(len(source.train))]) / 255
  mean, std = statistics(data, source.info, source.train)
  np.testing.assert_allclose(mean, [pixels.mean()], atol=1e-4)
  np.testing.assert_allclose(std, [pixels.std()], atol=1e-4)


def test_a_well_known_set_needs_no_images(make_data):
  data = make_data()
  known = DatasetInfo("imagenette/160px-v2", image_spec(3))
  assert statistics(data, known) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
  assert statistics(data, DatasetInfo("mnist:3.0.1", image_spec(1))) == ((0.1307,), (0.3081,))
  with pytest.raises(ConfigError, match="are not read here"):  # a function of the user's own
    statistics(data, DatasetInfo("mnist:open_inverted", image_spec(1)))


def test_values_in_the_config_are_used(data_dir, make_data):
  data = make_data(data_dir=str(data_dir), mean=(0.5,))
  source = open_source(data, seed=0)
  mean, std = statistics(data, source.info, source.train)
  assert mean == (0.5,) and 0.3 < std[0] < 0.5


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"mean": (0.5, 0.5, 0.5)}, r"data\.mean=.*one value for each of the 1 channels"),
    ({"std": ()}, r"data\.std=.*one value for each of the 1 channels"),
    ({"mean": None}, r"data\.mean=None: the training images of 'digits' are not read"),
  ],
)
def test_statistics_that_do_not_fit_are_refused(data_dir, make_data, change, message):
  data = make_data(data_dir=str(data_dir), **({"mean": (0.5,), "std": (0.5,)} | change))
  with pytest.raises(ConfigError, match=message):
    statistics(data, open_source(data, seed=0).info)


def test_large_sets_are_sampled_and_every_image_has_equal_weight():
  class Flat:
    """Even examples are small and black, odd ones large and white."""

    seen = 0

    def __len__(self):
      return 3 * LARGEST_SAMPLE

    def __getitem__(self, i):
      self.seen += 1
      return {"image": np.full((2 + 6 * (i % 2),) * 2 + (1,), 255 * (i % 2), np.uint8)}

  examples = Flat()
  (mean,), (std,) = compute(examples)
  assert examples.seen == LARGEST_SAMPLE
  assert abs(mean - 0.5) < 0.03 and abs(std - 0.5) < 0.01
  assert compute(examples) == ((mean,), (std,))


def test_images_of_a_shared_split_are_measured_once_each():
  class Noise:
    reads = 0

    def __len__(self):
      return 200

    def __getitem__(self, i):
      self.reads += 1
      return {"image": np.random.default_rng(i).integers(0, 256, (3, 2 + i % 4, 3), np.uint8)}

  noise = Noise()
  shared = SharedSplit(noise)
  for first in (0, 40):  # two seeds, whose train has other examples
    part = Subset(shared, lambda first=first: np.arange(first, first + 160))
    pixels = [noise[i]["image"] / 255 for i in part.indices]
    mean = np.mean([x.mean((0, 1)) for x in pixels], axis=0)
    square = np.mean([np.square(x).mean((0, 1)) for x in pixels], axis=0)
    expected = (mean, np.sqrt(square - mean**2))
    np.testing.assert_allclose(compute(part), expected, atol=5.1e-5)
  assert noise.reads == 2 * 160 + 200


def test_whitened_patches_are_uncorrelated_and_have_unit_variance():
  noise = np.random.default_rng(0).normal(size=(40, 9, 9, 3)).astype(np.float32)
  images = noise[:, :-1] + noise[:, 1:] + 0.5 * noise[:, :-1, :, ::-1] + 1  # correlated pixels
  kernel = whiten(images, 2)
  outputs = jax.lax.conv_general_dilated(
    images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )
  half = np.asarray(outputs[..., :12])
  np.testing.assert_allclose(np.cov(half.reshape(-1, 12), rowvar=False), np.eye(12), atol=0.01)
  np.testing.assert_array_equal(outputs[..., 12:], -half)
