"""Tests that need the extras `wandb` and `trackio`: a resumed run, read from the tracker.

Both trackers run offline in subprocesses, and keep their files in the test's own folder.
"""

import importlib.util
import json
import shutil
import sqlite3
import struct

import pytest

from tests import runs

pytestmark = pytest.mark.slow  # whole runs


def needs(package):
  return pytest.mark.skipif(
    importlib.util.find_spec(package) is None, reason=f"needs the extra {package}"
  )


def train_twice(tmp_path, tracker, **environment):
  """Trains, deletes the last checkpoint and resumes; returns (step, numbers) of each row.

  The names of the numbers are `kind/name`.
  """
  workdir, home = tmp_path / "run", {"HOME": str(tmp_path), **environment}
  settings = (f"tracking={tracker}", "tracking.project=tests", "duration=20 steps")
  runs.finish(runs.start(workdir, *settings, environment=home))
  shutil.rmtree(workdir / "checkpoints" / "20")
  runs.finish(runs.start(workdir, *settings, environment=home))
  return [
    (row["step"], {f"{row['kind']}/{k}": v for k, v in row.items() if is_number(k, v)})
    for row in runs.rows(workdir)
  ]


def is_number(name, value):
  return name != "step" and isinstance(value, int | float)


def check(rows, expected):
  """Asserts that the tracker has every row once and in order; only times may be added."""
  assert [step for step, _ in rows] == [step for step, _ in expected]
  for (_, got), (_, numbers) in zip(rows, expected, strict=True):
    assert got | numbers == got
    assert {name.split("/")[1] for name in got.keys() - numbers.keys()} <= {
      *("examples_per_second", "waiting", "eta", "seconds")
    }


@needs("trackio")
def test_trackio_has_every_row_once_in_one_run(tmp_path):
  place = tmp_path / "trackio"
  expected = train_twice(tmp_path, "trackio", TRACKIO_DIR=str(place))
  with sqlite3.connect(place / "tests.db") as base:
    rows = base.execute("select run_name, step, metrics from metrics order by id").fetchall()
  key = json.loads((tmp_path / "run" / "tracking.json").read_text())["id"]
  assert {name for name, *_ in rows} == {f"run-{key}"}
  check([(step, json.loads(metrics)) for _, step, metrics in rows], expected)


@needs("wandb")
def test_wandb_has_every_row_once_in_one_run(tmp_path):
  expected = train_twice(tmp_path, "wandb", WANDB_MODE="offline")
  files = sorted(tmp_path.glob("run/wandb/offline-run-*/run-*.wandb"))
  key = json.loads((tmp_path / "run" / "tracking.json").read_text())["id"]
  assert [path.name for path in files] == [f"run-{key}.wandb"] * 2  # one folder for each start
  rows = [row for path in files for row in histories(path.read_bytes())]
  check([(row.pop("step"), row) for row in rows], expected)


def histories(data):
  """Yields the logged values of a `.wandb` file, which is LevelDB's log after seven bytes."""
  from wandb.proto import wandb_internal_pb2 as pb

  at, whole = 7, b""
  while at + 7 <= len(data):
    rest = 2**15 - at % 2**15
    if rest < 7:  # the end of a block
      at += rest
      continue
    _, size, kind = struct.unpack("<IHB", data[at : at + 7])
    whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
    if kind in (1, 4):  # full, or the last part
      record, whole = pb.Record.FromString(whole), b""
      if record.WhichOneof("record_type") == "history":
        items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
        yield {key: json.loads(value) for key, value in items.items() if key[0] != "_"}
