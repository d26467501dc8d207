"""Examples on the devices give equal batches, to the bit, and are used only if they fit.

`test_loop` tests that the run stays equal.
"""

import jax
import numpy as np
import pytest

from tests import runs
from vitx.config.errors import ConfigError
from vitx.training import loop, parallel, resident


def open_batches(*overrides):
  return loop.make_experiment(runs.tiny(*overrides)).batches()


@pytest.mark.parametrize("overrides", [(), ("data.repeats=2",), ("data.sampling=balanced",)])
def test_batches_made_on_the_devices_are_those_that_are_sent(overrides):
  batches, steps, room = open_batches(*overrides), (38, 43), 7  # over the end of an epoch
  iterate, fill = resident.open_feed(batches, "always")
  named = list(iterate(*steps))
  assert all(set(each) == {"example", "index"} for each in named)
  found = fill(parallel.split_steps(named, room))
  expected = parallel.split_steps(list(batches.iterate(*steps)), room)
  assert set(found) == set(expected)
  for key, sent in expected.items():
    made = found[key]
    assert made.shape == sent.shape and made.dtype == sent.dtype
    np.testing.assert_array_equal(made[:, : len(named)], sent[:, : len(named)])


def test_they_lie_on_accelerators_that_have_room(monkeypatch):
  batches = open_batches()
  size = sum(array.nbytes for array in batches.arrays.values())
  assert resident.open_feed(batches, "auto")[1] is None  # a CPU's memory is the host's
  asked = []

  class Device:
    def __init__(self, told):
      self.told = told

    def memory_stats(self):
      asked.append(1)
      return self.told

  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(parallel, "replicate", lambda arrays: arrays)
  limits = {"bytes_limit": 10 * size}, {"bytes_limit": 10 * size - 10}, None
  for told, fits in zip(limits, (True, False, False), strict=True):
    devices = [Device(limits[0]), Device(told)]
    monkeypatch.setattr(jax, "local_devices", lambda devices=devices: devices)
    assert (resident.open_feed(batches, "auto")[1] is not None) == fits
    assert resident.open_feed(batches, "never")[1] is None
  assert len(asked) == 6


def test_what_is_streamed_cannot_lie_there():
  with pytest.raises(ConfigError, match=r"data.memory='always'"):
    resident.open_feed(open_batches("data.memory=never"), "always")
  for streamed in ("data.memory=never", "data.resize_mode=random"):
    with pytest.raises(ConfigError, match=r"data.device='always'"):
      loop.make_experiment(runs.tiny("data.device=always", streamed))
