"""Tests that need the extras `tensorboard` and `prepare`; CI has an environment for them.

TensorFlow stays in subprocesses: other tests assert that nothing imports it.
"""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests import runs
from vitx.config.errors import ConfigError
from vitx.data.sources import open_source

pytestmark = [
  pytest.mark.slow,  # importing TensorFlow alone takes ten seconds
  pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None
    or importlib.util.find_spec("tensorboard") is None,
    reason="needs the extras tensorboard and prepare",
  ),
]


def python(code: str) -> str:
  """Returns the last line that a program prints."""
  command = [sys.executable, "-c", f"from vitx.cli.main import main\n{code}"]
  result = subprocess.run(command, capture_output=True, text=True, cwd=runs.ROOT)
  assert result.returncode == 0, result.stderr[-4000:]
  return result.stdout.strip().splitlines()[-1]


def test_tensorboard_gets_the_rows_of_the_metrics(tmp_path):
  config = f"digits:{runs.replace(runs.TINY, *runs.PLAIN, 'tracking=tensorboard')}"
  train_and_read = f"""
assert main(["train", "--config", {config!r}, "--workdir", {str(tmp_path)!r}]) == 0
import json
from tensorboard.backend.event_processing import event_accumulator as ea
events = ea.EventAccumulator({str(tmp_path)!r}, size_guidance={{"tensors": 0}})
events.Reload()
from tensorboard.util import tensor_util
tags = events.Tags()["tensors"]
print(json.dumps({{t: [[e.step, float(tensor_util.make_ndarray(e.tensor_proto))]
                       for e in events.Tensors(t)] for t in tags}}))
"""
  events = json.loads(python(train_and_read))
  for tag, name in (("train/loss", "loss"), ("validation/top1", "top1")):
    kind = tag.split("/")[0]
    expected = [[row["step"], row[name]] for row in runs.rows(tmp_path) if row["kind"] == kind]
    assert [step for step, _ in events[tag]] == [step for step, _ in expected]
    for (_, value), (_, logged) in zip(events[tag], expected, strict=True):
      assert value == pytest.approx(logged, rel=1e-6)
  assert "train/examples_per_second" in events


def test_a_tfrecord_copy_that_tfds_wrote_is_converted(tmp_path, data_dir):
  """The data that TFDS wrote are refused with the command that converts them, and then read."""
  old, new = str(tmp_path / "old"), str(tmp_path / "new")
  write_and_convert = f"""
from vitx.data.builders.digits import digits_dataset_builder as d
builder = d.Digits(data_dir={old!r}, file_format="tfrecord")
builder.download_and_prepare()
assert main(["prepare", "digits", "--from", {old!r}, "--data_dir", {new!r}]) == 0
print(builder.info.file_format)
"""
  assert "TFRECORD" in python(write_and_convert)
  with pytest.raises(ConfigError, match="vitx prepare digits --from"):
    open_source(runs.tiny(f"data.data_dir='{old}'").data, 0)
  converted, direct = (
    open_source(runs.tiny(f"data.data_dir='{p}'").data, 0) for p in (new, data_dir)
  )
  assert converted.info.fingerprint == direct.info.fingerprint
