"""Tests that need the extras `tensorboard` and `prepare`; CI has an environment for them.

TensorFlow stays in subprocesses: other tests assert that nothing imports it.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests import runs

pytestmark = [
  pytest.mark.slow,  # importing TensorFlow alone takes ten seconds
  pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None
    or importlib.util.find_spec("tensorboard") is None,
    reason="needs the extras tensorboard and prepare",
  ),
]


def python(code: str, **environment: str) -> str:
  result = subprocess.run(
    [sys.executable, "-c", code],
    capture_output=True,
    text=True,
    cwd=runs.ROOT,
    env=os.environ | environment,
  )
  assert result.returncode == 0, result.stderr[-4000:]
  return result.stdout.strip().splitlines()[-1]


def test_tensorboard_gets_the_rows_of_the_metrics(tmp_path):
  runs.finish(runs.start(tmp_path, "tracking=tensorboard"))
  read = f"""
import json
from tensorboard.backend.event_processing import event_accumulator as ea
events = ea.EventAccumulator({str(tmp_path)!r}, size_guidance={{"tensors": 0}})
events.Reload()
from tensorboard.util import tensor_util
tags = events.Tags()["tensors"]
print(json.dumps({{t: [[e.step, float(tensor_util.make_ndarray(e.tensor_proto))]
                       for e in events.Tensors(t)] for t in tags}}))
"""
  found = json.loads(python(read))
  for tag, name in (("train/loss", "loss"), ("validation/top1", "top1")):
    kind = tag.split("/")[0]
    expected = [[row["step"], row[name]] for row in runs.rows(tmp_path) if row["kind"] == kind]
    assert [step for step, _ in found[tag]] == [step for step, _ in expected]
    for (_, value), (_, wanted) in zip(found[tag], expected, strict=True):
      assert value == pytest.approx(wanted, rel=1e-6)
  assert "train/examples_per_second" in found


def test_a_tfrecord_copy_that_tfds_wrote_is_converted(tmp_path, data_dir):
  """The data that TFDS wrote are refused with the command that converts them, and then read."""
  write = f"""
import tensorflow_datasets as tfds
from vitx.data.builders.digits import digits_dataset_builder as d
builder = d.Builder(data_dir={str(tmp_path / "old")!r}, file_format="tfrecord")
builder.download_and_prepare()
print(builder.info.file_format)
"""
  assert "TFRECORD" in python(write)
  config = f"data.data_dir='{tmp_path / 'old'}'"
  output = runs.finish(runs.start(tmp_path / "run", config, "duration=6 steps"), code=1)
  assert "vitx prepare digits --from" in output
  command = [sys.executable, "-m", "vitx", "prepare", "digits", "--from", str(tmp_path / "old")]
  subprocess.run([*command, "--data_dir", str(tmp_path / "new")], check=True, cwd=runs.ROOT)
  config = f"data.data_dir='{tmp_path / 'new'}'"
  runs.finish(runs.start(tmp_path / "run", config, "duration=6 steps"))
  runs.finish(runs.start(tmp_path / "own", "duration=6 steps"))
  fingerprints = {
    json.loads((tmp_path / name / "environment.json").read_text())["data"]["fingerprint"]
    for name in ("run", "own")
  }
  assert len(fingerprints) == 1
