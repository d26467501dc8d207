"""A run records only what is on the disk and what it has written itself."""

import pytest

from tests import runs
from tests.training.test_loop import short
from vitx.checkpoints.lock import WorkdirInUseError
from vitx.checkpoints.store import CheckpointStore
from vitx.training import loop
from vitx.training.record.recorder import Record, Recorder


@pytest.mark.slow
def test_the_test_row_comes_after_the_last_checkpoint(tmp_path, monkeypatch):
  """The row of the test split says that the run is over, so the last checkpoint must exist."""
  calls = []

  def record(owner, name):
    function = getattr(owner, name)

    def call(self, *given, **options):
      calls.append((name, given[0] if given else None))
      return function(self, *given, **options)

    monkeypatch.setattr(owner, name, call)

  for owner, name in ((CheckpointStore, "save"), (CheckpointStore, "wait")):
    record(owner, name)
  record(Recorder, "write_figures")
  assert loop.train(short(), tmp_path).finished
  saved, row = calls.index(("save", 3)), calls.index(("write_figures", "test"))
  assert ("wait", None) in calls[saved:row]


def test_a_log_that_another_training_took_over_gets_no_rows(tmp_path):
  def refuse():
    raise WorkdirInUseError("taken over")

  experiment = loop.make_experiment(runs.tiny())
  recorder = Recorder(experiment, str(tmp_path), Record(), start=0, write=True, guard=refuse)
  with pytest.raises(WorkdirInUseError):
    recorder.write_figures("validation", 1, {"top1": 0.5})
  assert not (tmp_path / "metrics.jsonl").exists()
