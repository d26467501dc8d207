"""Small real sets: the digits, prepared once per run, and folders of drawn images."""

import numpy as np
import pytest
from PIL import Image

from vitx.config.fields import DataSettings
from vitx.config.settings import read_fields


@pytest.fixture(scope="session")
def digits_dir(data_dir):
  """A TFDS directory that holds the digits."""
  return data_dir


@pytest.fixture
def make_data():
  """Returns a function from changed fields to a config's `data`."""

  def make(**changes):
    return read_fields(DataSettings, changes)

  return make


@pytest.fixture
def draw():
  """Returns a function that writes an image of random pixels; the suffix chooses the format."""

  def write(path, size=(12, 10), mode="RGB", seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *channels), np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels

  return write


@pytest.fixture
def folder(tmp_path, draw):
  """A directory per class: 20 cats, 10 dogs and 5 owls of different sizes."""
  for class_name, count in (("cat", 20), ("dog", 10), ("owl", 5)):
    for i in range(count):
      draw(tmp_path / "pets" / class_name / f"{i}.png", size=(8 + i, 12), seed=i)
  return tmp_path / "pets"
