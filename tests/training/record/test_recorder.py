"""A run records only what is on the disk and what it has written itself."""

import threading

import orbax.checkpoint as ocp
import pytest

from tests import runs
from tests.training.test_loop import short
from vitx.checkpoints.directory import Directory
from vitx.checkpoints.lock import WorkdirInUseError
from vitx.checkpoints.store import CheckpointStore
from vitx.checkpoints.workdir import locate_checkpoints
from vitx.training import loop
from vitx.training.record.recorder import Record, Recorder


@pytest.mark.slow
def test_the_test_row_comes_after_the_last_checkpoint(tmp_path, monkeypatch):
  """The row of the test split says that the run is over, so the last checkpoint must exist."""
  finalize, write = ocp.CompositeCheckpointHandler.finalize, Recorder.write_figures
  save, wait = CheckpointStore.save, CheckpointStore.wait
  saved, waited, stood = [], threading.Event(), []

  def finalize_late(self, *given, **options):
    assert waited.wait(600)  # as on a slow disk, the save ends only when it is waited for
    return finalize(self, *given, **options)

  def begin_to_save(self, *given, **options):
    save(self, *given, **options)
    saved.append(given[0])

  def wait_for_it(self):
    if saved:
      waited.set()
    wait(self)

  def look(self, role, *given):
    if role == "test":
      stood.append(Directory(locate_checkpoints(str(tmp_path))).steps())
    write(self, role, *given)

  monkeypatch.setattr(ocp.CompositeCheckpointHandler, "finalize", finalize_late)
  monkeypatch.setattr(CheckpointStore, "save", begin_to_save)
  monkeypatch.setattr(CheckpointStore, "wait", wait_for_it)
  monkeypatch.setattr(Recorder, "write_figures", look)
  assert loop.train(short(), tmp_path).finished
  assert saved == [3] and stood == [[3]]


def test_what_another_training_took_over_gets_no_rows(tmp_path):
  def refuse():
    raise WorkdirInUseError("taken over")

  experiment = loop.make_experiment(runs.tiny())
  recorder = Recorder(experiment, str(tmp_path), Record(), start=0, write=True, guard=refuse)
  with pytest.raises(WorkdirInUseError):
    recorder.write_figures("validation", 1, {"top1": 0.5})
  assert not (tmp_path / "metrics.jsonl").exists()
