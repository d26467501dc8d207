"""Training in this process that a signal interrupts."""

from vitx.runtime import signals
from vitx.training import experiment, loop


def train_until(at: int, config, workdir, monkeypatch) -> loop.Result:
  """Trains step by step until SIGTERM arrives when the step `at` is dispatched."""

  class StopAt(signals.StopRequest):
    times = 0

    def is_received(self):
      self.times += 1
      return self.times >= at - 2

  with monkeypatch.context() as patch:
    patch.setattr(loop, "StopRequest", StopAt)
    # The program of several steps makes one at a time, so no other program is compiled.
    patch.setattr(experiment.Experiment, "next_event", lambda self, step, most: step + 1)
    return loop.train(config, workdir)
