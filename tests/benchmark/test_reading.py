"""The rates at which batches are read, beside those of Pillow alone."""

import functools
import io

import numpy as np
import pytest
from PIL import Image

from vitx.benchmark import reading, timing
from vitx.cli.main import main

CONFIG = "digits:softmax,batch_size=16,model.depth=1,data.threads=2"


def test_both_readers_read_equal_images():
  experiment = reading.open_streamed(CONFIG)
  batches = experiment.batches()
  assert batches.storage is None and reading.count_steps(experiment, 50) == 3
  readers = reading.make_readers(experiment, 50)
  (contents,) = [
    cell.cell_contents
    for cell in readers[reading.PILLOW].__closure__
    if isinstance(cell.cell_contents, list)
  ]
  images = np.concatenate([batch["image"] for batch in batches.iterate(0, 3)])
  pixels = [np.asarray(Image.open(io.BytesIO(content)))[..., None] for content in contents]
  np.testing.assert_array_equal(images, pixels)


def test_the_command_prints_rates_and_memory(monkeypatch, capsys):
  monkeypatch.setattr(timing, "peak_bytes", lambda *_: 3_000_000)
  assert main(["benchmark", "data", "--config", CONFIG, "--examples=64", "--runs=2"]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == "Examples per second, 64 per run, 2 threads, batch_size=16"
  assert [line.split("  ")[0] for line in lines[1:4]] == [reading.STREAM, reading.PILLOW, "ratio"]
  assert lines[4].endswith(": 3 MB")


@pytest.mark.slow(reason="a process of its own")
def test_streaming_takes_little_memory_beside_the_opened_data():
  make = functools.partial(reading.make_stream, 512)
  peak = timing.peak_bytes(functools.partial(make, CONFIG), make, CONFIG, 1)
  assert 0 <= peak < 100e6
