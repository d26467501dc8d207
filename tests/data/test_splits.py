import dataclasses

import numpy as np
import pytest

from vitx.data import splits
from vitx.data.dataset import Dataset
from vitx.errors import ConfigError


class Labeled:
  """Examples that are nothing but labels."""

  def __init__(self, counts=(20, 10, 3, 1)):
    self.labels = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    np.random.default_rng(0).shuffle(self.labels)

  def __len__(self):
    return len(self.labels)

  def image(self, i):
    raise AssertionError("roles must not decode images")

  def label(self, i):
    return int(self.labels[i])

  def name(self, i):
    return str(i)


def fake(*splits, unlabeled=()):
  opened = {split: Labeled() for split in splits}
  return Dataset(
    name="fake",
    class_names=("a", "b", "c", "d"),
    image_size=None,
    channels=3,
    splits=splits,
    unlabeled=tuple(unlabeled),
    open_split=lambda split: opened.setdefault(split, Labeled()),
    overlap=lambda a, b: a == b,
    fingerprint="",
  )


def counts(examples):
  return np.bincount(examples.labels, minlength=4).tolist()


@pytest.mark.parametrize(
  ("splits", "unlabeled", "select", "report"),
  [
    (("train", "test"), (), "", "test"),
    (("train", "validation"), (), "", "validation"),
    (("train", "validation"), ("test",), "", "validation"),
    (("train", "validation", "test"), (), "validation", "test"),
    (("train", "val", "test"), (), "val", "test"),
    (("train",), (), "", ""),
  ],
)
def test_which_split_plays_which_role(splits, unlabeled, select, report):
  names = splits.split_names(
    fake(*splits, unlabeled=unlabeled), {"train": "", "select": "", "report": ""}
  )
  assert names == {"train": "train", "select": select, "report": report}


def test_test_split_never_selects():
  given = {"train": "", "select": "", "report": "validation"}
  assert splits.split_names(fake("train", "validation", "test"), given)["select"] == ""


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"train": "trian"}, r"data\.splits\.train='trian'.*does not exist.*'train'.*test"),
    ({"report": "blind"}, r"data\.splits\.report='blind'.*no labels"),
    ({"select": "test"}, r"data\.splits\.report='test' shares examples with data\.splits\.select"),
    ({"select": "nope[:10%]"}, "nope"),
  ],
)
def test_bad_splits(given, message):
  splits = {"train": "", "select": "", "report": "", **given}
  with pytest.raises(ConfigError, match=message):
    splits.split_names(fake("train", "test", unlabeled=("blind",)), splits)


def test_missing_train_lists_what_exists():
  with pytest.raises(ConfigError, match=r"'train'.*does not exist.*Labeled splits: test"):
    splits.split_names(fake("test"), {"train": "", "select": "", "report": ""})


def test_select_is_carved_balanced_disjoint_and_fixed_by_the_seed(make_data):
  dataset = fake("train", "test")
  first = splits.assign(dataset, make_data(select=0.2), seed=1)
  again = splits.assign(dataset, make_data(select=0.2), seed=1)
  other = splits.assign(dataset, make_data(select=0.2), seed=2)
  assert counts(first["select"]) == [4, 2, 1, 0]  # the only one of the last class stays in train
  assert counts(first["train"]) == [16, 8, 2, 1]
  together = np.concatenate([first["train"].indices, first["select"].indices])
  assert sorted(together.tolist()) == list(range(34))
  np.testing.assert_array_equal(first["select"].indices, again["select"].indices)
  assert first["select"].indices.tolist() != other["select"].indices.tolist()


def test_report_carved_where_there_is_no_split_for_it_is_the_same_for_every_seed(make_data):
  a, b = (splits.assign(fake("train"), make_data(), seed=seed) for seed in (0, 1))
  assert counts(a["report"]) == [4, 2, 1, 0]
  np.testing.assert_array_equal(a["report"].indices, b["report"].indices)
  names = [{role.name(i) for i in range(len(role))} for role in a.values()]
  assert len(set.union(*names)) == sum(map(len, names)) == 34


def test_fractions_are_balanced_and_nested(make_data):
  dataset, previous = fake("train", "test"), set()
  for share, expected in ((0.01, [1, 1, 1, 1]), (0.3, [5, 3, 1, 1]), (0.7, [13, 6, 1, 1])):
    train = splits.assign(dataset, make_data(fraction=share), seed=0)["train"]
    names = {train.name(i) for i in range(len(train))}
    assert counts(train) == expected and previous <= names
    previous = names
  whole = splits.assign(dataset, make_data(), seed=0)["train"]
  assert previous <= {whole.name(i) for i in range(len(whole))}


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"select": 0.0}, r"data\.select=0"),
    ({"select": 1.0}, r"data\.select=1"),
    ({"fraction": 0.0}, r"data\.fraction=0"),
    ({"fraction": 1.5}, r"data\.fraction=1\.5"),
  ],
)
def test_bad_shares(make_data, change, message):
  with pytest.raises(ConfigError, match=message):
    splits.assign(fake("train", "test"), make_data(**change), seed=0)


class Unscanned(Labeled):
  """Examples whose labels must not be asked for."""

  def __init__(self):
    pass

  @property
  def labels(self):
    raise AssertionError("labels were scanned")

  def __len__(self):
    return 34


def test_labels_are_found_only_when_needed(make_data):
  dataset = fake("train", "test", "validation")
  dataset = dataclasses.replace(dataset, open_split=lambda split: Unscanned())
  assert len(splits.assign(dataset, make_data(), seed=0)["train"]) == 34
  # Carving a split needs the labels of train, but only once train is used.
  dataset = dataclasses.replace(dataset, splits=("train", "test"))
  assigned = splits.assign(dataset, make_data(), seed=0)
  assert len(assigned["report"]) == 34
  with pytest.raises(AssertionError, match=r"scanned"):
    len(assigned["train"])
