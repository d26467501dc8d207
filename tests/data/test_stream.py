"""Threads read a bounded number of batches ahead, in order, and end with the iterator."""

import threading

import numpy as np
import pytest
from PIL import Image

from tests.data.test_batches import assert_same
from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings
from vitx.data import batches, stream
from vitx.data.dataset import read_encoded
from vitx.data.images.decode import Encoded
from vitx.data.images.resizing import ResizeImages
from vitx.data.sources import open_source
from vitx.data.transform import Identity

ROWS = 3 * stream.CHUNK - 5  # the last chunk of a batch is shorter


class Counted:
  """Examples that record when they are read; those in `bad` cannot be read.

  The first example of `late` is read after the second, which another thread reads. So the chunks of
  a batch do not end in their order.
  """

  labels = None

  def __init__(self, count=500, bad=(), late=()):
    self.read, self._count, self._bad = [], count, bad
    self._late, self._overtaken = late, threading.Event()

  def __len__(self):
    return self._count

  def __getitem__(self, i):
    self.read.append(i)
    if i in self._late[1:]:
      self._overtaken.set()
    if i in self._late[:1]:
      assert self._overtaken.wait(240)
    if i in self._bad:
      raise ConfigError(f"{self.name(i)} cannot be read")
    return {"number": np.array([i, -i])}

  def name(self, i):
    return f"number {i}"


def make(examples, memory="never", threads=4, repeats=1, **changes):
  data = DataSettings(memory=memory, threads=threads, repeats=repeats)
  settings = {"transform": Identity(), "batch_size": ROWS, "seed": 1} | changes
  return batches.TrainBatches(examples, data, **settings)


def join_threads(before):
  """Waits for the end of all threads that are not in `before`."""
  for thread in set(threading.enumerate()) - before:
    thread.join(240)
  assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
  ("threads", "processes", "repeats"),
  [(1, 1, 3), (1, 2, 1), (3, 1, 3), (3, 2, 1), (16, 1, 1), (16, 2, 3)],
)
def test_streamed_batches_equal_those_in_memory(threads, processes, repeats):
  settings = {"batch_size": 2 * ROWS, "threads": threads, "repeats": repeats}
  for p in range(processes):
    mine = settings | {"process_index": p, "process_count": processes}
    stored = make(Counted(), "always", **mine)
    numbers = stored.batch(7)["number"][:, 0].tolist()
    late = (numbers[0], numbers[-1]) if threads > 1 else ()
    streamed = make(Counted(late=late), **mine)
    rest = list(streamed.iterate(7, 11))
    assert len(rest) == 4
    for step, batch in enumerate(rest, 7):
      assert_same(batch, stored.batch(step))


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_an_iterator_ends_its_threads(taken):
  before = set(threading.enumerate())
  examples = Counted()
  iterator = make(examples).iterate(0, 3 if taken == 3 else 1000)
  for _ in range(taken):
    next(iterator)
  iterator.close()
  join_threads(before)
  assert len(examples.read) <= (taken + stream.AHEAD) * ROWS + 4


def test_the_first_unreadable_example_is_named_and_threads_end():
  before = set(threading.enumerate())
  order = np.concatenate([batch["number"][:, 0] for batch in make(Counted()).iterate(0, 4)])
  first, later = int(order[2 * ROWS + 1]), int(order[2 * ROWS + 30])
  iterator = make(Counted(bad={first, later}, late=(first, later))).iterate(0, 4)
  assert len([next(iterator), next(iterator)]) == 2
  with pytest.raises(ConfigError, match=f"number {first} cannot"):
    next(iterator)
  join_threads(before)


class Arrays:
  """The arrays of other examples, without a method `encoded`."""

  def __init__(self, parent):
    self._parent, self.labels, self.name = parent, parent.labels, parent.name

  def __len__(self):
    return len(self._parent)

  def __getitem__(self, i):
    return self._parent[i]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
  """A folder of pictures of several sizes, modes, formats and orientations."""
  folder = tmp_path_factory.mktemp("pictures")
  modes, sizes = ("RGB", "L", "RGBA", "P", "CMYK"), ((20, 14), (13, 25), (12, 12), (40, 40))
  for i in range(40):
    mode, size = modes[i % 5], sizes[i % 4]
    pixels = np.random.default_rng(i).integers(0, 256, (*size, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6 if i % 3 else 1
    path = folder / "ab"[i % 2] / f"{i}.{'jpg' if mode in ('RGB', 'L', 'CMYK') else 'png'}"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path, exif=exif)
  return folder


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("mode", "train"), [("center", True), ("random", True), ("random", False)])
def test_encoded_images_give_the_pixels_of_their_arrays(pictures, make_data, channels, mode, train):
  source = open_source(make_data(source=f"folder:{pictures}", channels=channels), seed=0)
  transform = ResizeImages(12, mode, train=train)
  assert isinstance(read_encoded(source.train, 0)["image"], Encoded)

  arrays = Arrays(source.train)
  assert arrays[0]["image"].flags.writeable
  ways = [
    make(some, transform=transform, batch_size=30).batch(2) for some in (source.train, arrays)
  ]
  assert_same(*ways)
  assert ways[0]["image"].shape == (30, 12, 12, channels)
