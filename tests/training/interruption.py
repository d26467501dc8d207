"""Training in this process that a signal interrupts."""

import copy

from vitx.training import failures, loop


def train_until(at: int, config, workdir, monkeypatch) -> loop.Result:
  """Trains step by step until SIGTERM arrives when the step `at` is dispatched."""
  config = copy.deepcopy(config)
  config.steps_per_dispatch = 1

  class StopAt(failures.StopRequest):
    times = 0

    def is_received(self):
      self.times += 1
      return self.times >= at - 2

  with monkeypatch.context() as patch:
    patch.setattr(loop, "StopRequest", StopAt)
    return loop.train(config, workdir)
