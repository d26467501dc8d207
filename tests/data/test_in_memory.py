"""Runs that share examples in memory have the batches and the errors that each has alone."""

import collections
import re
import weakref

import numpy as np
import pytest

from tests.data.examples import names, roles
from vitx.config.errors import UnreadableError
from vitx.config.settings import change
from vitx.data import sources
from vitx.data.batches import TrainBatches, evaluation_batches
from vitx.data.dataset import spread
from vitx.data.images.resizing import ResizeImages
from vitx.data.in_memory import keep, transform_one
from vitx.data.sources import open_source, sharing
from vitx.data.sources.folder import ImageFiles

READING = {"transform": ResizeImages(8), "threads": 2}


@pytest.fixture
def reads(monkeypatch):
  """The number of times that each image is read."""
  counts, read = collections.Counter(), ImageFiles.encoded

  def encoded(self, i):
    counts[self.paths[i]] += 1
    return read(self, i)

  monkeypatch.setattr(ImageFiles, "encoded", encoded)
  return counts


def read_batches(data, seed):
  """Returns the first training batches of a run, and all batches of its evaluations."""
  source = open_source(data, seed)
  train = TrainBatches(source.train, data, transform=READING["transform"], batch_size=4, seed=seed)
  batches = list(train.iterate(0, 9))
  for examples in (source.validation, source.test):
    stored = keep(examples, memory=data.memory, **READING)
    assert names(stored) == names(examples) and len(stored) == len(examples)
    np.testing.assert_array_equal(stored.labels, examples.labels)
    np.testing.assert_array_equal(stored[0]["label"], examples.labels[0])
    batches += evaluation_batches(stored, batch_size=3, **READING)
  return batches


@pytest.mark.parametrize(
  ("fields", "change_of_second"),
  [
    ({}, {}),
    ({"folds": 3, "fold": 0, "fraction": 0.9}, {"fold": 2}),
    ({"fraction": 0.9, "sampling": "balanced"}, {"fraction": 0.3}),
    ({"groups": r"(\d)\.png"}, {}),
    ({"on_unreadable": "skip", "memory": "always"}, {}),
  ],
)
def test_a_run_after_another_has_the_batches_that_it_has_alone(
  fields, change_of_second, folder, make_data, reads
):
  is_skip = "on_unreadable" in fields
  if is_skip:
    (folder / "cat" / "3.png").write_bytes(b"no image")
  first = make_data(source=f"folder:{folder}", **fields)
  runs = [(first, 0), (change(first, change_of_second), 1), (first, 2)]
  alone = [read_batches(*run) for run in runs]
  reads.clear()
  with sharing():
    shared = [read_batches(*run) for run in runs]
  for one, other in zip(alone, shared, strict=True):
    for a, b in zip(one, other, strict=True):
      assert a.keys() == b.keys()
      for key in a:
        assert a[key].dtype == b[key].dtype
        np.testing.assert_array_equal(a[key], b[key])
  assert max(reads.values()) == 1 + is_skip  # all are read once to find the unreadable ones


def test_runs_that_share_examples_name_the_same_unreadable_ones(folder, make_data):
  for path in folder.glob("cat/1*.png"):
    path.write_bytes(b"no image")
  data = make_data(source=f"folder:{folder}")

  def find_errors(seed):
    errors = []
    for examples in roles(open_source(data, seed)):
      with pytest.raises(UnreadableError) as error:
        keep(examples, memory="always", **READING)
      errors.append(re.sub("object at 0x.*", "", str(error.value)))
    return errors

  seeds = (0, 1, 2)
  alone = [find_errors(seed) for seed in seeds]
  with sharing():
    assert [find_errors(seed) for seed in seeds] == alone


def test_shared_examples_leave_memory_before_other_data_enter(folder, make_data, monkeypatch):
  data, opening = make_data(source=f"folder:{folder}"), sources.open_dataset

  def store():
    return weakref.ref(keep(open_source(data, 0).train, memory="always", **READING).storage)

  assert store()() is None
  with sharing():
    first = store()
    assert first() is store()() is not None

    def open_other(other):
      assert first() is None
      return opening(other)

    monkeypatch.setattr(sources, "open_dataset", open_other)
    open_source(change(data, {"channels": 1}), 0)
    last = store()
    assert last() is not None
  assert last() is None


def test_some_of_the_kept_examples_are_transformed_once(make_data):
  def increase(row, bits):
    return {"image": row["image"] + 1}

  increase.draws = False
  kept = keep(open_source(make_data(), 0).test, transform=increase, memory="always", threads=1)
  image = transform_one(spread(kept, 3), increase, 1)["image"]
  np.testing.assert_array_equal(image, kept[len(kept) // 3]["image"])


def test_small_parts_and_other_transforms_share_no_arrays(folder, make_data):
  data = make_data(source=f"folder:{folder}", fraction=0.3)
  smaller = {**READING, "transform": ResizeImages(5)}
  with sharing():
    part = keep(open_source(data, 0).train, memory="always", **READING)
    assert len(part) == len(part.storage.is_read) < 12
    train = open_source(change(data, {"fraction": 1.0}), 0).train
    whole = keep(train, memory="always", **READING)
    assert len(whole) < len(whole.storage.is_read) == 35
    other = keep(train, memory="always", **smaller)
  assert (whole[0]["image"].shape, other[0]["image"].shape) == ((8, 8, 3), (5, 5, 3))
