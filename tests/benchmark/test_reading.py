"""The rates at which batches are read, beside those of Pillow alone."""

import functools
import io

import numpy as np
import pytest
from PIL import Image

from vitx.benchmark import reading, timing
from vitx.cli.main import main

CONFIG = "digits:softmax,batch_size=16,model.depth=1,data.threads=2"


def test_readers_take_turns_and_the_first_reading_does_not_count():
  order, now = [], [0.0]

  def read(name, seconds):
    def run():
      order.append(name)
      now[0] += seconds

    return run

  readers = {reading.STREAM: read("a", 2.0), reading.PILLOW: read("b", 4.0)}
  found = reading.measure_rates(readers, 100, runs=2, say=lambda text: None, clock=lambda: now[0])
  assert "".join(order) == "ababab"
  assert found == {reading.STREAM: [50.0, 50.0], reading.PILLOW: [25.0, 25.0]}
  lines = reading.format_rates(found).splitlines()
  assert lines[-1].split() == ["ratio", "2.00", "2.00", "median", "2.00"]
  assert len(reading.format_rates({reading.STREAM: [1234.0]}).splitlines()) == 1


def test_pillow_reads_every_image(monkeypatch):
  buffer = io.BytesIO()
  Image.new("L", (9, 7)).save(buffer, "png")
  seen, resize = [], Image.Image.resize

  def spy(self, size, *args):
    seen.append((self.mode, size))
    return resize(self, size, *args)

  monkeypatch.setattr(Image.Image, "resize", spy)
  reading.make_pillow([buffer.getvalue()] * 3, "RGB", (5, 5))()
  assert seen == [("RGB", (5, 5))] * 3


def test_the_same_images_are_read_both_ways():
  experiment = reading.open_streamed(CONFIG)
  batches = experiment.batches()
  assert batches.arrays is None and reading.count_steps(experiment, 50) == 3
  readers = reading.make_readers(experiment, 50)
  (contents,) = [
    cell.cell_contents
    for cell in readers[reading.PILLOW].__closure__
    if isinstance(cell.cell_contents, list)
  ]
  found = np.concatenate([batch["image"] for batch in batches.iterate(0, 3)])
  pixels = [np.asarray(Image.open(io.BytesIO(content)))[..., None] for content in contents]
  np.testing.assert_array_equal(found, pixels)


def test_from_arguments_to_lines(monkeypatch, capsys):
  monkeypatch.setattr(timing, "peak_bytes", lambda *given: 3_000_000)
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
