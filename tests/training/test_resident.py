"""Examples on the devices give equal batches, to the bit, and are used only if they fit.

`test_loop` tests that the run stays equal.
"""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests import runs
from vitx.config.settings import change
from vitx.data.batches import TrainBatches
from vitx.data.images.resizing import ResizeImages
from vitx.data.in_memory import keep
from vitx.data.sources import open_source, sharing
from vitx.runtime import parallel
from vitx.training import loop, resident


def open_batches(*overrides):
  return loop.make_experiment(runs.tiny(*overrides)).batches()


@pytest.mark.parametrize(
  "overrides",
  [(), ("data.sampling=balanced",), ("data.repeats=2", "augment.alternate_flips=True")],
)
def test_batches_made_on_the_devices_are_those_that_are_sent(overrides):
  batches, steps, room = open_batches(*overrides), (38, 43), 7  # over the end of an epoch
  iterate, fill = resident.open_feed(batches, "always")
  named = list(iterate(*steps))
  numbers = {"index", "parity"} if len(overrides) == 2 else {"index"}
  assert all(set(batch) == {"example", *numbers} for batch in named)
  arrays = fill(parallel.split_steps(named, room))
  expected = parallel.split_steps(list(batches.iterate(*steps)), room)
  assert set(arrays) == set(expected)
  for key, sent in expected.items():
    array = arrays[key]
    assert array.shape == sent.shape and array.dtype == sent.dtype
    np.testing.assert_array_equal(array[:, : len(named)], sent[:, : len(named)])


def test_examples_are_on_accelerators_that_have_room(monkeypatch):
  batches = open_batches()
  size = sum(array.nbytes for array in batches.storage.arrays.values())
  assert resident.open_feed(batches, "auto")[1] is None  # a CPU's memory is the host's
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(parallel, "replicate", lambda arrays: arrays)
  limits = {"bytes_limit": 10 * size}, {"bytes_limit": 10 * size - 10}, None
  for limit, fits in zip(limits, (True, False, False), strict=True):
    stats = [lambda: limits[0], lambda limit=limit: limit]
    devices = [SimpleNamespace(memory_stats=function) for function in stats]
    monkeypatch.setattr(jax, "local_devices", lambda devices=devices: devices)
    assert (resident.open_feed(batches, "auto")[1] is not None) == fits
    assert resident.open_feed(batches, "never")[1] is None


def test_runs_share_a_copy_that_has_all_their_examples(monkeypatch):
  copies, replicate = [], parallel.replicate
  monkeypatch.setattr(parallel, "replicate", lambda x: copies.append(x) or replicate(x))
  data, transform = change(runs.tiny().data, {"memory": "always"}), ResizeImages(8)
  with sharing():
    for seed in range(4):
      source = open_source(data, seed)
      batches = TrainBatches(source.train, data, transform=transform, batch_size=32, seed=seed)
      iterate, fill = resident.open_feed(batches, "always")
      keep(source.validation, transform=transform, memory="always", threads=2)
      filled = fill(parallel.split_steps(list(iterate(0, 3)), 3))
      expected = parallel.split_steps(list(batches.iterate(0, 3)), 3)
      for key, sent in expected.items():
        np.testing.assert_array_equal(filled[key], sent)
  copies = [x for x in copies if x]  # the program that fills batches has no constants
  assert len(copies) == 2  # the first lacks the validation examples of the first run
