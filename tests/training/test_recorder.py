"""What a run writes down is true of what stands on the disk, and its own."""

import time

import orbax.checkpoint as ocp
import pytest

from tests import runs
from vitx.checkpoints.directory import Directory
from vitx.checkpoints.lock import WorkdirInUseError
from vitx.checkpoints.workdir import locate_checkpoints
from vitx.training import loop
from vitx.training.recorder import Record, Recorder
from vitx.training.setup import make_experiment


def test_the_test_row_comes_after_the_last_checkpoint(tmp_path, monkeypatch):
  """Which says that the run is over: killed between the two, it would never be."""
  finalize, write, stood = ocp.CompositeCheckpointHandler.finalize, Recorder.write_figures, []

  def finalize_late(self, *given, **options):
    time.sleep(3)  # as a slow disk
    return finalize(self, *given, **options)

  def look(self, role, *given):
    if role == "test":
      stood.append(Directory(locate_checkpoints(str(tmp_path))).steps())
    write(self, role, *given)

  monkeypatch.setattr(ocp.CompositeCheckpointHandler, "finalize", finalize_late)
  monkeypatch.setattr(Recorder, "write_figures", look)
  assert loop.train(runs.tiny("duration=2 steps", "schedule.warmup=1 steps"), tmp_path).finished
  assert stood == [[2]]


def test_what_another_training_took_over_gets_no_rows(tmp_path):
  def refuse():
    raise WorkdirInUseError("taken over")

  experiment = make_experiment(runs.tiny())
  recorder = Recorder(experiment, str(tmp_path), Record(), start=0, write=True, guard=refuse)
  with pytest.raises(WorkdirInUseError):
    recorder.write_figures("validation", 1, {"top1": 0.5})
  assert not (tmp_path / "metrics.jsonl").exists()
