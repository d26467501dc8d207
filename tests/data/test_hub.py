"""Data sets of the Hugging Face library `datasets`, for which CI has its own environment."""

import numpy as np
import pytest
from PIL import Image

from tests.data.examples import roles
from vitx.config import default_config
from vitx.config.errors import ConfigError, UnreadableError
from vitx.data.dataset import ROLES, check_arrays
from vitx.data.sources import open_source

datasets = pytest.importorskip("datasets")

NAMES = ["rose", "daisy"]


def make_table(count, more=(), **columns):
  images = [Image.fromarray(np.full((4 + i % 3, 5, 3), i, np.uint8)) for i in range(count)]
  values = {"photo": images, "kind": [i % 2 for i in range(count)], **columns}
  features = {"photo": datasets.Image(), "kind": datasets.ClassLabel(names=NAMES)}
  table = datasets.Dataset.from_dict(values, features=datasets.Features(features))
  return table.add_column("more", more) if more else table


def open_saved(path, table, **fields):
  table.save_to_disk(str(path))
  config = default_config()
  with config.unlocked():
    config.data.update({"source": f"hf:{path}", **fields})
  return open_source(config.data, 0)


def read(examples):
  return [examples[i] for i in range(len(examples))]


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
  source = open_saved(tmp_path / "set", make_table(20, [i // 4 for i in range(20)]), groups="more")
  groups = [{int(role.name(i)[6:-1]) // 4 for i in range(len(role))} for role in roles(source)]
  assert sum(map(len, groups)) == len(set.union(*groups)) == 5
  assert sum(len(source.role(role)) for role in ROLES) == 20
  assert all(len(source.role(role)) for role in ROLES)
  other = make_table(20, [i // 4 for i in range(20)]).map(
    lambda row: {"more": (row["more"] + 1) % 5}
  )
  assert open_saved(tmp_path / "corrected", other, groups="more").info.fingerprint != (
    source.info.fingerprint
  )


def test_a_directory_of_images_is_read_by_the_library(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  for i in range(20):
    folder = tmp_path / "photos" / "train" / NAMES[i % 2]
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 5, 3), i, np.uint8)).save(folder / f"{i}.png")
  config = default_config()
  config.data.source = "hf:~/photos"
  source = open_source(config.data, 0)
  assert source.info.class_names == ("daisy", "rose")
  pixels = {int(source.train[i]["image"][0, 0, 0]) for i in range(len(source.train))}
  assert pixels < set(range(20)) and len(pixels) == len(source.train)


def test_a_split_without_labels_is_not_used(tmp_path):
  hidden = make_table(4, kind=[-1, -1, None, -1])
  tables = datasets.DatasetDict(train=make_table(20), test=hidden)
  source = open_saved(tmp_path / "set", tables)
  assert 0 < len(source.test) < 20  # carved from train
  unlabeled = open_saved(tmp_path / "images", tables, label_columns=())
  assert len(unlabeled.test) == 4 and unlabeled.test.labels is None


def test_examples_without_a_label_are_left_out(tmp_path, caplog):
  source = open_saved(tmp_path / "set", make_table(20, kind=[-1, None, *[0, 1] * 9]))
  pixels = {int(x["image"][0, 0, 0]): x["label"] for role in roles(source) for x in read(role)}
  assert pixels == {i: i % 2 for i in range(2, 20)}
  assert "skipped 2 examples whose label is missing: train[0], train[1]" in caplog.text


CODED = datasets.ClassLabel(names=["ox", "elk"])


@pytest.mark.parametrize(
  ("column", "kind", "chosen", "names"),
  [
    (["owl", "cat", "owl", None], datasets.Value("string"), ("more",), ("cat", "owl")),
    ([10, 9], datasets.Value("int64"), ("more",), ("9", "10")),
    ([10, 9, 10, -1], datasets.Value("int64"), ("more",), ("9", "10")),
    ([10, 9], datasets.Value("int64"), None, tuple(NAMES)),
    ([10, 9], datasets.Value("int64"), (), None),
    (["elk", "ox"], CODED, None, None),  # a second ClassLabel
    (["elk", "ox"], CODED, ("more",), ("ox", "elk")),
  ],
)
def test_the_column_of_the_classes_is_chosen(tmp_path, column, kind, chosen, names):
  table = make_table(12, more=column * (12 // len(column))).cast_column("more", kind)
  source = open_saved(tmp_path / "set", table, label_columns=chosen)
  assert source.info.class_names == names
  assert source.info.numbered == (not chosen or kind is CODED)
  assert sum(map(len, roles(source))) == (9 if {None, -1} & {*column} else 12)
  example = source.train[0]
  if names is None:
    assert source.train.labels is None and example.keys() == {"image"}
    with pytest.raises(ConfigError, match=r"no array 'label'.*data\.label_columns.*more \("):
      check_arrays(source.info, {"label": ("integer", 0)}, "classification")
  else:
    texts = column if chosen else NAMES
    assert names[example["label"]] == str(texts[example["image"][0, 0, 0] % len(texts)])


def test_images_that_cannot_be_read_are_left_out(tmp_path):
  photos = [*make_table(12)["photo"]]
  photos[3], photos[7] = None, {"bytes": b"cut", "path": None}
  table = make_table(12, photo=photos)
  source = open_saved(tmp_path / "set", table, on_unreadable="skip")
  assert sum(map(len, roles(source))) == 10 and source.unreadable == ("train[3]", "train[7]")
  with pytest.raises(UnreadableError, match=r"train\[3\] cannot be read: the image is missing"):
    read(open_saved(tmp_path / "set", table).train)


def make_numbers():
  """Returns a table with a label that its ClassLabel does not have."""
  features = datasets.DatasetInfo(features=make_table(4).features)
  table = make_table(4).remove_columns("kind").add_column("kind", [0, 1, 5, 1])
  return datasets.Dataset(table.data, info=features)


@pytest.mark.parametrize(
  ("make", "fields", "message"),
  [
    (
      lambda: make_table(6).rename_column("photo", "picture"),
      {},
      "the columns photo and kind with",
    ),
    (
      lambda: make_table(6).cast_column("kind", datasets.ClassLabel(names=NAMES[::-1])),
      {},
      "'test' does not have the columns photo and kind with",
    ),
    (make_numbers, {}, "'test' have the label 5, but only 2 class_names"),
    (lambda: make_table(4), {"label_columns": ("knd",)}, r"label_columns='knd' .*'kind'"),
    (lambda: make_table(4), {"source": "hf:set:train"}, "'hf:set:train': .* has no configs"),
  ],
)
def test_unsuitable_sets_are_refused(tmp_path, monkeypatch, make, fields, message):
  monkeypatch.chdir(tmp_path)
  tables = datasets.DatasetDict(train=make_table(12), test=make())
  with pytest.raises(ConfigError, match=message):
    open_saved(tmp_path / "set", tables, **fields)


def test_a_set_with_two_columns_of_images_is_refused(tmp_path):
  table = make_table(4).add_column("second", [None] * 4).cast_column("second", datasets.Image())
  with pytest.raises(ConfigError, match="one column of kind Image, but has photo, second"):
    open_saved(tmp_path / "set", table)


def test_a_set_that_does_not_exist_is_named(tmp_path):
  config = default_config()
  config.data.source = f"hf:{tmp_path / 'nothing'}"
  with pytest.raises(ConfigError, match="cannot be loaded by the library datasets"):
    open_source(config.data, 0)
