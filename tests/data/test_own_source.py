"""A user's own source may have examples that are no images and have no classes."""

import sys

import numpy as np
import pytest

from tests.data.examples import Rows, names, roles
from vitx.config.errors import ConfigError
from vitx.data import batches
from vitx.data.dataset import ArraySpec, Dataset, DatasetInfo, Joined
from vitx.data.sources import open_dataset, open_source
from vitx.data.transform import Identity

COUNT = 50
SPEC = {"vector": ArraySpec((3,), "float32"), "target": ArraySpec((), "float64")}


def vectors(count=COUNT, shift=0, **more):
  """Returns vectors that count up from a number, with half of the number as the target."""
  return Rows(
    [
      {"vector": np.arange(i, i + 3, dtype=np.float32) + shift, "target": np.float64(i / 2)}
      | {key: values[i] for key, values in more.items()}
      for i in range(count)
    ],
    "vector",
  )


def open_vectors(data):
  info = DatasetInfo(data["source"], SPEC)
  return Dataset(info, ("train",), {"train": vectors()}.__getitem__)


def open_shifted(data):
  return Dataset(DatasetInfo(data["source"], SPEC), ("train",), lambda split: vectors(shift=1))


def open_fixed(data):
  info = DatasetInfo("fixed", SPEC, vocabulary=7, fingerprint="abc")
  splits = {"train": vectors(), "test": vectors(9)}
  return Dataset(info, tuple(splits), splits.__getitem__)


def make(function="open_vectors", **changes):
  return {"source": f"{__name__}:{function}", **changes}


def open_labeled(data):
  names = tuple(map(str, range(data["classes"])))
  info = DatasetInfo(data["source"], SPEC, class_names=names, fingerprint="abc")
  return Dataset(info, ("train",), lambda split: vectors(label=np.arange(COUNT) % 10))


def test_splits_without_classes_are_disjoint_and_fixed_by_the_seed():
  source, again, other = (open_source(make(), seed) for seed in (0, 0, 1))
  assert list(map(len, roles(source))) == [36, 4, 10]
  joined = Joined(roles(source))
  assert all(role.labels is None for role in (*roles(source), joined))
  assert sorted(names(joined)) == sorted(f"vector {i}" for i in range(COUNT))
  np.testing.assert_array_equal(source.validation.indices, again.validation.indices)
  assert source.validation.indices.tolist() != other.validation.indices.tolist()
  np.testing.assert_array_equal(source.test.indices, other.test.indices)
  part = open_source(make(fraction=0.5), 0).train
  assert len(part) == 18
  assert set(names(part)) < set(names(source.train))


def test_splits_that_the_source_has_are_used():
  source = open_source(make("open_fixed", validation=0.2), 0)
  assert list(map(len, roles(source))) == [40, 10, 9]
  assert (source.info.vocabulary, source.info.fingerprint) == (7, "abc")


def test_the_fingerprint_follows_the_arrays():
  fingerprints = [open_dataset(make(name)).info.fingerprint for name in ("open_vectors",) * 2]
  assert fingerprints[0] == fingerprints[1] and len(fingerprints[0]) == 32
  assert open_dataset(make("open_shifted")).info.fingerprint != fingerprints[0]


def test_arrays_of_another_shape_are_refused():
  uneven = Rows([{"vector": np.zeros(3 + (i == 5))} for i in range(9)], "vector")
  with pytest.raises(ConfigError, match=r"'vector' of 'vector 5' is float64 \(4,\)"):
    batches.keep(uneven, transform=Identity(), memory="always", threads=1)


def test_a_missing_function_is_refused():
  with pytest.raises(ConfigError, match=r"data\.source=.*cannot be imported.*open_vector"):
    open_source(make("open_vector"), 0)


def test_a_label_without_a_name_is_refused():
  with pytest.raises(ConfigError, match=r"'train' have the label 9, but only 3 class_names"):
    open_dataset(make("open_labeled", classes=3))
  assert len(open_dataset(make("open_labeled", classes=12)).info.class_names) == 12


def test_labels_of_some_examples_only_are_refused(monkeypatch):
  few = vectors(label=np.arange(COUNT) % 10)
  few.labels = few.labels[:40]
  monkeypatch.setattr(sys.modules[__name__], "vectors", lambda **_: few)
  with pytest.raises(ConfigError, match=r"'train' have 40 labels, but there are 50 examples"):
    open_dataset(make("open_labeled", classes=10))
