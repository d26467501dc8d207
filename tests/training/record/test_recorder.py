"""A run records only what is on the disk and what it has written itself."""

import dataclasses
import re
import subprocess
from types import SimpleNamespace

import pytest

from tests import runs
from tests.training.test_loop import short
from vitx.checkpoints.lock import WorkdirInUseError
from vitx.checkpoints.store import CheckpointStore
from vitx.runtime import environment
from vitx.training import loop, restore
from vitx.training.record.recorder import Record, Recorder


def test_a_repository_that_does_not_track_vitx_has_no_commit_of_it(tmp_path, monkeypatch):
  package = tmp_path / "site/vitx"
  (package / "runtime").mkdir(parents=True)
  (package / "__init__.py").touch()
  monkeypatch.setattr(environment, "__file__", str(package / "runtime/environment.py"))

  def git(*arguments):
    person = ("-c", "user.name=x", "-c", "user.email=x")
    subprocess.run(["git", *person, *arguments], cwd=tmp_path, check=True, capture_output=True)

  assert environment._commit() is None
  git("init")
  git("commit", "--allow-empty", "-m", "Begin")
  assert environment._commit() is None
  git("add", ".")
  git("commit", "-m", "Track it")
  assert re.fullmatch("[0-9a-f]{40}", environment._commit())


@pytest.mark.slow
def test_the_test_row_comes_after_the_last_checkpoint(tmp_path, monkeypatch):
  """The row of the test split says that the run is over, so the last checkpoint must exist."""
  calls = []

  def record(owner, name):
    function = getattr(owner, name)

    def call(self, *arguments, **options):
      calls.append((name, arguments[0] if arguments else None))
      return function(self, *arguments, **options)

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


@pytest.mark.parametrize(("total", "rows"), [(12, 3), (7, 5)])
def test_a_run_goes_on_without_what_its_early_end_added(total, rows, monkeypatch):
  """The last evaluation, whose row and best step only the end at step 7 asked for, is forgotten."""
  stored = Record(rows=5, seconds=2.0, best_step=7, onward=dataclasses.asdict(Record(rows=3)))
  checkpoint = SimpleNamespace(state=None, step=7, record=dataclasses.asdict(stored))
  store = SimpleNamespace(restore_latest=lambda target: checkpoint)
  experiment = SimpleNamespace(settings=runs.tiny(), named_shapes=dict, total_steps=total)
  monkeypatch.setattr(restore, "is_writer", lambda: False)
  record = restore.begin(experiment, "run", store, initialize=pytest.fail).record
  assert record.rows == rows and record.seconds == 2.0
  assert record.best_step == (7 if total == 7 else None)


def test_a_processor_is_described_by_more_than_its_name():
  x86 = "cpu family : 25\nmodel : 17\nmodel name : AMD EPYC\nstepping : 1\nflags : fpu sse4_2 avx2"
  assert environment.describe_processor(f"{x86}\n\nmodel : 18") == {
    "processor": "AMD EPYC",
    "processor_version": {"cpu family": "25", "model": "17", "stepping": "1"},
    "vector_extensions": ["avx2", "sse4_2"],
  }
  arm = environment.describe_processor("CPU part : 0xd40\nFeatures : fp asimd sve crc32")
  assert arm["processor_version"] == {"CPU part": "0xd40"}
  assert arm["vector_extensions"] == ["asimd", "sve"]
