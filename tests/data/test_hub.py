"""Data sets of the Hugging Face library `datasets`, for which CI has its own environment."""

import numpy as np
import pytest
from PIL import Image

from vitx.config import default_config
from vitx.config.errors import ConfigError
from vitx.data.dataset import ROLES
from vitx.data.sources import open_source

datasets = pytest.importorskip("datasets")

NAMES = ["rose", "daisy"]


def make_table(count, **columns):
  images = [Image.fromarray(np.full((4 + i % 3, 5, 3), i, np.uint8)) for i in range(count)]
  found = {"photo": images, "kind": [i % 2 for i in range(count)], **columns}
  features = {"photo": datasets.Image(), "kind": datasets.ClassLabel(names=NAMES)}
  features |= {name: datasets.Value("int64") for name in columns}
  return datasets.Dataset.from_dict(found, features=datasets.Features(features))


def open_saved(path, table, **fields):
  table.save_to_disk(str(path))
  config = default_config()
  config.data.update({"source": f"hf:{path}", **fields})
  return open_source(config.data, 0)


def test_splits_classes_and_pixels_are_read(tmp_path):
  tables = datasets.DatasetDict(train=make_table(12), validation=make_table(4), test=make_table(6))
  source = open_saved(tmp_path / "set", tables)
  assert source.info.class_names == tuple(NAMES)
  assert [len(source.role(role)) for role in ROLES] == [12, 4, 6]
  example = source.test[5]
  np.testing.assert_array_equal(example["image"], np.full((6, 5, 3), 5))
  assert example["label"] == 1 and example["label"].dtype == np.int32
  assert source.test.name(5) == "test[5]"
  moved = open_saved(tmp_path / "moved", tables)
  assert moved.info.fingerprint == source.info.fingerprint
  other = open_saved(tmp_path / "other", datasets.DatasetDict({**tables, "test": make_table(7)}))
  assert other.info.fingerprint != source.info.fingerprint


def test_a_single_table_is_train(tmp_path):
  source = open_saved(tmp_path / "set", make_table(20, id=list(range(20))))
  assert sum(len(source.role(role)) for role in ROLES) == 20
  assert all(len(source.role(role)) for role in ROLES)


def test_a_directory_of_images_is_read_by_the_library(tmp_path):
  for i in range(20):
    folder = tmp_path / "photos" / "train" / NAMES[i % 2]
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 5, 3), i, np.uint8)).save(folder / f"{i}.png")
  config = default_config()
  config.data.source = f"hf:{tmp_path / 'photos'}"
  source = open_source(config.data, 0)
  assert source.info.class_names == ("daisy", "rose")
  pixels = {int(source.train[i]["image"][0, 0, 0]) for i in range(len(source.train))}
  assert pixels < set(range(20)) and len(pixels) == len(source.train)


def test_a_split_without_labels_is_not_used(tmp_path):
  hidden = make_table(4).map(lambda _: {"kind": -1})
  source = open_saved(tmp_path / "set", datasets.DatasetDict(train=make_table(20), test=hidden))
  assert 0 < len(source.test) < 20  # carved from train


@pytest.mark.parametrize(
  "change",
  [
    lambda table: table.rename_column("photo", "picture"),
    lambda table: table.cast_column("kind", datasets.ClassLabel(names=NAMES[::-1])),
  ],
)
def test_splits_with_other_columns_or_classes_are_refused(tmp_path, change):
  tables = datasets.DatasetDict(train=make_table(12), test=change(make_table(6)))
  with pytest.raises(ConfigError, match=r"'test' does not have the columns photo and kind with"):
    open_saved(tmp_path / "set", tables)


@pytest.mark.parametrize(
  ("table", "message"),
  [
    (lambda: make_table(4).remove_columns("kind"), "one column of kind ClassLabel, but has none"),
    (
      lambda: datasets.concatenate_datasets(
        [make_table(4), make_table(4).select_columns("photo").rename_column("photo", "second")],
        axis=1,
      ),
      "one column of kind Image, but has photo, second",
    ),
  ],
)
def test_unsuitable_columns_are_named(tmp_path, table, message):
  with pytest.raises(ConfigError, match=message):
    open_saved(tmp_path / "set", table())


def test_a_set_that_does_not_exist_is_named(tmp_path):
  config = default_config()
  config.data.source = f"hf:{tmp_path / 'nothing'}"
  with pytest.raises(ConfigError, match="cannot be loaded by the library datasets"):
    open_source(config.data, 0)
