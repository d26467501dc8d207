"""A user's own source may have examples that are no images and have no classes."""

import sys

import numpy as np
import pytest

from tests.data.examples import Rows, names, roles
from tests.data.test_batches import assert_same
from vitx.config.errors import ConfigError
from vitx.config.registry import trusting
from vitx.data import batches, order
from vitx.data.dataset import ArraySpec, Dataset, DatasetInfo, Joined
from vitx.data.images.resizing import ResizeImages
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


def open_nothing(data):
  return None


def make(function="open_vectors", **changes):
  return {"source": f"{__name__}:{function}", **changes}


def open_labeled(data):
  names = tuple(map(str, range(data["classes"])))
  info = DatasetInfo(data["source"], SPEC, class_names=names, fingerprint="abc")
  return Dataset(info, ("train",), lambda split: vectors(label=np.arange(COUNT) % 10))


class Noisy:
  """A transform that adds to each vector a number drawn for the row and the step."""

  draws = True

  def __call__(self, example, bits):
    return {**example, "vector": example["vector"] + np.float32(order.uniform(bits, 1)[0])}


def train(source, transform=None, **changes):
  settings = {"batch_size": 8, "seed": 3, "memory": "never", "threads": 2} | changes
  return batches.TrainBatches(source.train, transform=transform or Identity(), **settings)


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


def test_what_a_transform_draws_follows_from_seed_step_and_index():
  source = open_source(make(), 0)
  noisy = train(source, Noisy(), memory="auto")
  assert noisy.arrays is None
  whole = list(noisy.iterate(0, 4))
  assert_same(whole[3], noisy.batch(3))
  halves = [
    train(source, Noisy(), process_index=p, process_count=2, threads=5).batch(3) for p in (0, 1)
  ]
  assert_same(whole[3], {key: np.concatenate([half[key] for half in halves]) for key in halves[0]})
  noise = np.concatenate([b["vector"][:, 0] - 2 * b["target"] for b in whole])
  assert len(np.unique(noise.round(5))) > 25
  with pytest.raises(ConfigError, match=r"data\.memory='always' cannot keep"):
    train(source, Noisy(), memory="always")
  with pytest.raises(ValueError, match="draws random bits"):
    batches.evaluation_batches(source.test, transform=Noisy(), batch_size=8, threads=1)


def test_the_fingerprint_follows_the_arrays():
  found = [open_dataset(make(name)).info.fingerprint for name in ("open_vectors",) * 2]
  assert found[0] == found[1] and len(found[0]) == 32
  assert open_dataset(make("open_shifted")).info.fingerprint != found[0]


def test_arrays_of_another_shape_are_named():
  uneven = Rows([{"vector": np.zeros(3 + (i == 5))} for i in range(9)], "vector")
  with pytest.raises(ConfigError, match=r"'vector' of 'vector 5' is float64 \(4,\)"):
    batches.keep(uneven, transform=Identity(), memory="always", threads=1)


@pytest.mark.parametrize(
  ("source", "message"),
  [
    (f"{__name__}:open_vector", r"data\.source=.*cannot be imported.*open_vector"),
    ("no_such_module:open_it", r"data\.source='no_such_module:open_it' cannot be imported"),
    (f"{__name__}:open_nothing", r"data\.source=.* returns a NoneType.* must return a .*Dataset"),
  ],
)
def test_sources_that_cannot_be_opened(source, message):
  with pytest.raises(ConfigError, match=message):
    open_source({"source": source}, 0)


def test_code_that_is_not_trusted_is_not_imported():
  with trusting(False), pytest.raises(ConfigError, match=r"data\.source=.*trust_code"):
    open_source(make(), 0)


def test_a_label_without_a_name_is_told():
  with pytest.raises(
    ConfigError, match=r"'train' have the label 9, but the 3 class_names are for 0 to 2"
  ):
    open_dataset(make("open_labeled", classes=3))
  assert len(open_dataset(make("open_labeled", classes=12)).info.class_names) == 12


def test_labels_of_only_some_examples_are_told(monkeypatch):
  few = vectors(label=np.arange(COUNT) % 10)
  few.labels = few.labels[:40]
  monkeypatch.setattr(sys.modules[__name__], "vectors", lambda **_: few)
  with pytest.raises(ConfigError, match=r"'train' have 40 labels, but there are 50 examples. Give"):
    open_dataset(make("open_labeled", classes=10))


class Incomplete:
  """Examples without some of the attributes and arrays that a source needs."""

  def __init__(self, *attributes):
    for attribute in attributes:
      setattr(self, attribute, None)

  def __len__(self):
    return 3

  def __getitem__(self, i):
    return {"vector": np.zeros(3, np.float32)}


@pytest.mark.parametrize(
  ("attributes", "message"),
  [
    ((), r"'train' have no 'labels'. Their class must define labels, the classes as int32 \(n,\)"),
    (("labels",), r"'train' have no 'name'. Their class must define a method name\(i\) that"),
    (("labels", "name"), r"'train' have no array target, which the spec .* target, vector"),
  ],
)
def test_examples_that_lack_something_are_named(attributes, message, monkeypatch):
  monkeypatch.setattr(sys.modules[__name__], "vectors", lambda: Incomplete(*attributes))
  with pytest.raises(ConfigError, match=rf"data\.source='{__name__}:open_vectors': .*{message}"):
    open_dataset(make())


def test_a_later_example_without_an_array_is_named():
  image = np.zeros((8, 8, 1), np.uint8)
  holed = Rows([{"image": image} | ({} if i == 5 else {"label": 0}) for i in range(9)])
  with pytest.raises(ConfigError, match=r"'example 5' has no array 'label', .* arrays are image"):
    batches.keep(holed, transform=ResizeImages(8), memory="always", threads=1)
