"""Measures how fast a config's training batches are read, compared with one thread of Pillow."""

import io
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from PIL import Image

from vitx.config.fields import seed_of
from vitx.config.loader import load_config
from vitx.data import order
from vitx.data.dataset import read_encoded
from vitx.data.images.decode import FORMATS, Encoded
from vitx.data.images.settings import FILE_MODES
from vitx.training.experiment import Experiment, make_experiment

STREAM, PILLOW = "streamed batches", "one thread of Pillow"


def make_pillow(contents: Sequence[bytes], mode: str, size: tuple[int, ...]) -> Callable[[], None]:
  """Returns a function that decodes images to a mode and (height, width) by Pillow alone."""

  def run() -> None:
    for content in contents:
      with Image.open(io.BytesIO(content), formats=FORMATS) as file:
        file.load()
        image = file if file.mode == mode else file.convert(mode)
      image.resize((size[1], size[0]), Image.Resampling.BILINEAR)

  return run


def measure_rates(
  readers: Mapping[str, Callable[[], None]],
  examples: int,
  *,
  runs: int,
  say: Callable[[str], None],
) -> dict[str, list[float]]:
  """Times several readers of equal examples in turns, and returns their rates.

  Args:
    readers: The readers: functions that each read all examples once. Each reader is called once
      untimed. Then the readers are timed in turns.
    examples: The number of examples.
    runs: The number of timed runs of each reader.
    say: A function called with messages on the progress.

  Returns:
    The examples per second of each reader, one number for each run.
  """
  for read in readers.values():
    read()
  rates_of: dict[str, list[float]] = {name: [] for name in readers}
  for run in range(runs):
    say(f"run {run + 1} of {runs}")
    for name, read in readers.items():
      start = time.perf_counter()
      read()
      rates_of[name].append(examples / (time.perf_counter() - start))
  return rates_of


def format_rates(rates_of: Mapping[str, list[float]]) -> str:
  """Returns the examples per second of every run, and the ratio to Pillow, as text."""
  lines = []
  for name, rates in rates_of.items():
    values = "  ".join(f"{rate:,.0f}" for rate in rates)
    lines.append(f"{name:<24}{values}  median {statistics.median(rates):,.0f}")
  if PILLOW in rates_of:
    ratios = [a / b for a, b in zip(rates_of[STREAM], rates_of[PILLOW], strict=True)]
    values = "  ".join(f"{ratio:.2f}" for ratio in ratios)
    lines.append(f"{'ratio':<24}{values}  median {statistics.median(ratios):.2f}")
  return "\n".join(lines)


def open_streamed(text: str) -> Experiment:
  """Opens the data of a config for streaming, as training does with data too large for memory."""
  config = load_config(text)
  config.data.memory = "never"
  return make_experiment(config, is_trial=True)


def count_steps(experiment: Experiment, examples: int) -> int:
  """Returns the number of steps that read about `examples` examples."""
  return max(1, examples // experiment.settings.batch_size)


def make_stream(examples: int, text: str) -> Callable[[], None]:
  """Opens a config's data, and returns a function that reads its first training batches."""
  return read_batches(open_streamed(text), examples)


def read_batches(experiment: Experiment, examples: int) -> Callable[[], None]:
  """Returns a function that reads the first training batches, about `examples` examples."""
  batches, steps = experiment.batches(), count_steps(experiment, examples)

  def run() -> None:
    for _ in batches.iterate(0, steps):
      pass

  return run


def make_readers(experiment: Experiment, examples: int) -> dict[str, Callable[[], None]]:
  """Returns the readers to compare: one of training batches and, for image files, one by Pillow."""
  readers = {STREAM: read_batches(experiment, examples)}
  settings, train = experiment.settings, experiment.examples.train
  positions = np.arange(count_steps(experiment, examples) * settings.batch_size)
  seed = seed_of(settings, "data_seed")
  which = order.example_at(seed, positions, len(train), settings.data.repeats)
  images = [read_encoded(train, i).get("image") for i in which.tolist()]
  stored = [image for image in images if isinstance(image, Encoded)]
  if stored:
    size = experiment.task.train_spec["image"].shape[:2]
    contents, mode = [image.content for image in stored], FILE_MODES[stored[0].channels]
    readers[PILLOW] = make_pillow(contents, mode, size)
  return readers
