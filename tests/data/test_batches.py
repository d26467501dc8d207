import numpy as np
import psutil
import pytest

from tests.data.examples import Rows
from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings
from vitx.data import batches, order
from vitx.data.images.resizing import ResizeImages


def image(i, varying=False):
  """Returns an image of one size or of many; the first pixel is the number of the image."""
  height, width = (8 + i % 3, 8 + i % 5) if varying else (8, 8)
  pixels = np.random.default_rng(i).integers(0, 256, (height, width, 3), np.uint8)
  pixels[0, 0] = i
  return pixels


def drawn(count=37, varying=False):
  return Rows([{"image": image(i, varying), "label": i % 5} for i in range(count)])


def make(examples=None, **changes):
  settings = {"batch_size": 8, "seed": 3, "memory": "always"} | changes
  names = settings.keys() & vars(DataSettings()).keys()
  data = DataSettings(**{name: settings.pop(name) for name in names})
  transform = ResizeImages(8, data.resize_mode)
  examples = drawn() if examples is None else examples
  return batches.TrainBatches(examples, data, transform=transform, **settings)


def evaluate(examples, resize_mode="center", **changes):
  settings = {"batch_size": 8, "threads": 2} | changes
  transform = ResizeImages(8, resize_mode, train=False)
  return list(batches.evaluation_batches(examples, transform=transform, **settings))


def assert_same(a, b):
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].dtype == b[key].dtype, key
    np.testing.assert_array_equal(a[key], b[key])


@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("batch_size", [8, 50])
@pytest.mark.parametrize("start", [0, 3, 1000])
def test_memory_and_stream_are_identical(varying, batch_size, start):
  held, streamed = (
    make(drawn(varying=varying), batch_size=batch_size, memory=memory, with_parity=varying)
    for memory in ("always", "never")
  )
  assert held.storage is not None and streamed.storage is None
  pairs = list(zip(held.iterate(start, start + 7), streamed.iterate(start, start + 7), strict=True))
  assert len(pairs) == 7
  for step, (a, b) in enumerate(pairs, start):
    assert_same(a, b)
    assert_same(a, held.batch(step))
    assert_same(a, streamed.batch(step))


@pytest.mark.parametrize("memory", ["always", "never"])
@pytest.mark.parametrize("repeats", [1, 3])
def test_batches_follow_the_order_and_spread_repeated_examples(memory, repeats):
  source = make(batch_size=12, repeats=repeats, memory=memory)
  for step, batch in zip(range(2, 9), source.iterate(2, 9), strict=True):
    assert (batch["image"].dtype, batch["label"].dtype) == (np.uint8, np.int32)
    places = order.places(np.arange(12), 12, repeats)
    which = order.example_at(3, step * 12 + places, 37, repeats)
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], which)
    np.testing.assert_array_equal(batch["label"], which % 5)
    np.testing.assert_array_equal(batch["index"], np.arange(12))
    partners = which.reshape(-1, 2)
    assert (partners[:, 0] == partners[:, 1]).sum() <= 1


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_parity_of_an_example_is_drawn_once_and_alternates_by_epoch(repeats):
  source, parities = make(batch_size=12, repeats=repeats, with_parity=True), {}
  for step, batch in enumerate(source.iterate(0, 37)):  # 12 epochs of 37 examples
    positions = step * 12 + order.places(np.arange(12), 12, repeats)
    for i, parity, epoch in zip(
      batch["image"][:, 0, 0, 0], batch["parity"], positions // 37, strict=True
    ):
      parities.setdefault(i, set()).add((parity + epoch) % 2)
  assert all(len(first) == 1 for first in parities.values())
  assert 10 < sum(map(max, parities.values())) < 27
  assert "parity" not in make().batch(0)
  examples = Rows([{"image": image(i), "label": i % 2} for i in range(9)])
  with pytest.raises(ConfigError, match=r"balanced' and .* exclude each other"):
    make(examples, sampling="balanced", with_parity=True)


@pytest.mark.parametrize("memory", ["always", "never"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_balanced_batches_are_a_function_of_seed_and_step(memory, repeats):
  labels = np.repeat([0, 1, 2, 4], [20, 10, 5, 2])
  examples = Rows([{"image": image(i), "label": label} for i, label in enumerate(labels)])
  settings = {"batch_size": 12, "sampling": "balanced", "memory": memory, "repeats": repeats}
  source = make(examples, **settings)
  expected = order.BalancedOrder(3, examples.labels)
  parts = [make(examples, **settings, process_index=p, process_count=2) for p in range(2)]
  for step, batch in zip(range(9, 14), source.iterate(9, 14), strict=True):
    places = order.places(np.arange(12), 12, repeats)
    which = expected.example_at(step * 12 + places, repeats)
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], which)
    assert np.unique(batch["label"], return_counts=True)[1].tolist() == [3, 3, 3, 3] or repeats > 1
    halves = [part.batch(step) for part in parts]
    assert_same(batch, {k: np.concatenate([h[k] for h in halves]) for k in halves[0]})
    assert_same(batch, source.batch(step))


@pytest.mark.parametrize("labels", [None, np.ones((16, 2), np.float32)])
def test_examples_without_one_class_each_cannot_be_balanced(labels):
  examples = drawn()
  examples.labels = labels
  with pytest.raises(ConfigError, match=r"data.sampling='balanced'.*needs one class"):
    make(examples, sampling="balanced")


@pytest.mark.parametrize("resize_mode", ["center", "random"])
@pytest.mark.parametrize("memory", ["auto", "never"])
def test_processes_share_the_global_batch(resize_mode, memory):
  settings = {"examples": drawn(varying=True), "resize_mode": resize_mode, "memory": memory}
  whole = make(**settings)
  parts = [make(**settings, process_index=p, process_count=2) for p in range(2)]
  for step in range(6):
    halves = [part.batch(step) for part in parts]
    joined = {key: np.concatenate([half[key] for half in halves]) for key in halves[0]}
    assert_same(whole.batch(step), joined)


def test_random_crops_depend_on_seed_step_and_index_only():
  source = make(drawn(varying=True), resize_mode="random", memory="auto")
  assert source.storage is None
  longer = list(source.iterate(0, 12))
  for step, batch in zip(range(9, 12), source.iterate(9, 12), strict=True):
    assert_same(batch, longer[step])
  again = make(drawn(varying=True), resize_mode="random", memory="never", threads=7).batch(11)
  assert_same(again, longer[11])
  other = make(drawn(varying=True), resize_mode="random", memory="never", seed=4)
  assert not np.array_equal(other.batch(0)["image"], longer[0]["image"])


def test_each_row_of_each_step_draws_its_own_crop():
  large = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
  source = make(Rows([{"image": large, "label": 0}]), resize_mode="random", memory="never")
  crops = np.concatenate([source.batch(step)["image"] for step in range(3)])
  assert len({crop.tobytes() for crop in crops}) == 24


def test_auto_keeps_examples_in_half_of_the_memory(monkeypatch):
  needed = 37 * (8 * 8 * 3 + 4)
  memory = type("Memory", (), {"available": 2 * needed})
  monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
  assert make(memory="auto").storage is not None
  memory.available -= 1
  assert make(memory="auto").storage is None


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"resize_mode": "random"}, r"data\.memory='always'.*random"),
    ({"examples": drawn(0)}, "no examples"),
  ],
)
def test_unsuitable_settings_are_refused(change, message):
  with pytest.raises(ConfigError, match=message):
    make(**change)


@pytest.mark.parametrize("count", [1, 8, 37, 48])
@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("stored", [False, True])
def test_evaluation_counts_every_example_once(count, processes, stored):
  examples = drawn(count)
  if stored:
    examples = batches.keep(examples, transform=ResizeImages(8), memory="always", threads=2)
  shares = [
    evaluate(examples, batch_size=6, process_index=p, process_count=processes)
    for p in range(processes)
  ]
  assert {len(share) for share in shares} == {-(-count // 6)}
  seen = []
  for batch in (batch for share in shares for batch in share):
    assert batch["image"].shape == (6 // processes, 8, 8, 3)
    assert [batch[key].dtype for key in ("label", "mask", "example")] == ["i4", "?", "i4"]
    for pixels, label, mask, example in zip(
      batch["image"], batch["label"], batch["mask"], batch["example"], strict=True
    ):
      if mask:
        seen.append(int(example))
        np.testing.assert_array_equal(pixels, image(example))
        assert label == example % 5
      else:
        assert example == -1 and not pixels.any()
  assert sorted(seen) == list(range(count))
