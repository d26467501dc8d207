"""A run in this process that a signal ends."""

import copy
import signal

from vitx.training import failures, loop


def train_until(at: int, config, workdir, monkeypatch) -> loop.Result:
  """Trains step by step until SIGTERM arrives when the step `at` is dispatched."""
  config = copy.deepcopy(config)
  config.steps_per_dispatch = 1

  class StopAt(failures.StopRequest):
    asked = 0

    @property
    def received(self):
      self.asked += 1
      return signal.SIGTERM if self.asked >= at - 2 else None

    @received.setter
    def received(self, value):
      pass

  with monkeypatch.context() as patch:
    patch.setattr(loop, "StopRequest", StopAt)
    return loop.train(config, workdir)
