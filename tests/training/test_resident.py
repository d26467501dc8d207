"""Examples on the devices give equal batches, to the bit, and are used only if they fit.

`test_loop` tests that the run stays equal.
"""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests import runs
from vitx.runtime import parallel
from vitx.training import loop, resident


def open_batches(*overrides):
  return loop.make_experiment(runs.tiny(*overrides)).batches()


@pytest.mark.parametrize("overrides", [(), ("data.repeats=2",), ("data.sampling=balanced",)])
def test_batches_made_on_the_devices_are_those_that_are_sent(overrides):
  batches, steps, room = open_batches(*overrides), (38, 43), 7  # over the end of an epoch
  iterate, fill = resident.open_feed(batches, "always")
  named = list(iterate(*steps))
  assert all(set(batch) == {"example", "index"} for batch in named)
  arrays = fill(parallel.split_steps(named, room))
  expected = parallel.split_steps(list(batches.iterate(*steps)), room)
  assert set(arrays) == set(expected)
  for key, sent in expected.items():
    array = arrays[key]
    assert array.shape == sent.shape and array.dtype == sent.dtype
    np.testing.assert_array_equal(array[:, : len(named)], sent[:, : len(named)])


def test_examples_are_on_accelerators_that_have_room(monkeypatch):
  batches = open_batches()
  size = sum(array.nbytes for array in batches.arrays.values())
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
