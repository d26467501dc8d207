"""Trackers get every row once, however a run is stopped, and resume the run that they know."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import runs
from vitx.checkpoints.metrics import MetricsLog
from vitx.config.errors import MissingExtraError
from vitx.training import loop
from vitx.training.failures import TrackingError
from vitx.training.record import tracking
from vitx.training.record.recorder import Record, Recorder
from vitx.training.record.trackers import TRACKERS, Tracker

KEPT = f"tracking={__name__}:Kept"


class Kept(Tracker):
  """A user's own tracker: a file of lines in the workdir."""

  def __init__(self, run, *, file: str = "kept.jsonl"):
    self._path = Path(run.workdir) / file
    self._append({"begin": run.id, "name": run.name, "seed": run.config["seed"]})

  def write(self, kind, step, figures):
    self._append({"kind": kind, "step": step, **figures})

  def close(self):
    self._append({"end": True})

  def _append(self, line):
    with open(self._path, "a") as file:
      file.write(json.dumps(line) + "\n")


def tracked(workdir):
  """Returns the tracked rows without their times, and all other tracked lines."""
  lines = [json.loads(line) for line in (workdir / "kept.jsonl").read_text().splitlines()]
  rows = [line for line in lines if "kind" in line]
  times = {"examples_per_second", "waiting", "eta", "seconds"}
  assert all(times <= row.keys() for row in rows if row["kind"] == "train")
  plain = [{k: v for k, v in row.items() if k not in times} for row in rows]
  return plain, [line for line in lines if "kind" not in line]


def numbers(rows):
  return [{k: v for k, v in row.items() if not isinstance(v, list)} for row in rows]


@pytest.mark.slow  # a run, and its end twice; the next tests send such rows without training
def test_a_tracker_gets_every_row_once_however_often_the_run_goes_on(tmp_path):
  config = runs.tiny(KEPT, "stop_after=20 steps")
  loop.train(config, tmp_path)
  expected = numbers(runs.rows(tmp_path))
  assert {row["kind"] for row in expected} == {"train", "validation", "test"}
  for times in (2, 3):  # back to step 16: rows of step 20 and the test's come again
    shutil.rmtree(tmp_path / "checkpoints" / "20")
    assert loop.train(config, tmp_path).finished
    again, others = tracked(tmp_path)
    assert again == expected == numbers(runs.rows(tmp_path))
    begins = [line for line in others if "begin" in line]
    assert len(begins) == times == len(others) / 2 and begins[0] == begins[-1]
  assert begins[0]["name"] == tmp_path.name and begins[0]["seed"] == 0


def open_log(workdir, rows, keep, *overrides):
  """Resumes a log after `keep` rows and writes the others of `rows`, as a run does."""
  log = MetricsLog(workdir, write=True, keep=keep)
  config = runs.tiny(KEPT, *overrides)
  track = tracking.open_tracking(config, str(workdir), log)
  for row in rows[keep:]:
    log.append(row)
    log.flush()
    if track is not None:
      track.write(row)
  if track is not None:
    track.close()


def rows(count, start=0):
  return [{"kind": "validation", "step": i, "top1": i / 8} for i in range(start, count)]


def test_rows_that_were_dropped_twice_are_still_known(tmp_path):
  open_log(tmp_path, rows(6), 0)
  open_log(tmp_path, rows(4), 2)  # killed again before it had caught up
  open_log(tmp_path, rows(8), 3)
  again, _ = tracked(tmp_path)
  assert again == rows(8)


def test_a_tracker_that_is_chosen_later_gets_what_was_logged_before(tmp_path):
  open_log(tmp_path, rows(4), 0, "tracking=none")
  assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl"}
  open_log(tmp_path, rows(6), 3)
  assert tracked(tmp_path)[0] == rows(6)


def test_a_tracker_that_was_left_for_a_while_gets_all_rows_as_another_run(tmp_path):
  open_log(tmp_path, rows(2), 0)
  open_log(tmp_path, rows(4), 2, "tracking=none")
  open_log(tmp_path, rows(6), 4)
  tracked_rows, others = tracked(tmp_path)
  assert tracked_rows == rows(2) + rows(6)
  assert len({line["begin"] for line in others if "begin" in line}) == 2


def test_another_tracker_is_another_run(tmp_path):
  open_log(tmp_path, rows(2), 0)
  (first,) = [line["begin"] for line in tracked(tmp_path)[1] if "begin" in line]
  open_log(tmp_path, rows(3), 2, "tracking.file=more.jsonl")
  second, *more, _ = [json.loads(x) for x in (tmp_path / "more.jsonl").read_text().splitlines()]
  assert second["begin"] != first and [row["step"] for row in more] == [0, 1, 2]


@pytest.mark.parametrize("where", ["__init__", "write", "close"])
def test_the_failure_of_a_tracker_is_reported(tmp_path, monkeypatch, where):
  def fail(*_, **__):
    raise OSError(f"no network at {where}")

  broken = type("Broken", (Kept,), {where: fail})
  monkeypatch.setattr(sys.modules[__name__], "Broken", broken, raising=False)
  config = runs.tiny(f"tracking={__name__}:Broken")
  log = MetricsLog(tmp_path, write=True, keep=0)
  track = tracking.open_tracking(config, str(tmp_path), log)
  with pytest.raises(TrackingError, match=rf"Broken failed: no network at {where}.*tracking=none"):
    track.write(rows(1)[0])
    track.close()


def test_processes_that_do_not_write_track_nothing(tmp_path):
  experiment: Any = SimpleNamespace(settings=runs.tiny(KEPT), total_steps=40, batch_size=8)
  recorder = Recorder(experiment, str(tmp_path), Record(), start=0, write=False)
  recorder.write_figures("validation", 1, {"top1": 0.5})
  recorder.close()
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name, kind in TRACKERS.items() if kind.packages])
def test_a_missing_package_names_its_extra(name, monkeypatch):
  config = runs.tiny(f"tracking={name}")
  monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda package: None)
  with pytest.raises(MissingExtraError, match=rf'tracking={name} needs .*\.\[{name}\]"'):
    tracking.check(config)
  tracking.check(config, is_trial=True)


def test_a_folder_of_the_packages_name_is_not_the_package(tmp_path, monkeypatch):
  (tmp_path / "trackio_runs").mkdir()
  monkeypatch.syspath_prepend(tmp_path)
  assert tracking._is_installed("json") and not tracking._is_installed("trackio_runs")
