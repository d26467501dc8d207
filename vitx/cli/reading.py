"""The batches that a config's training reads, streamed, for `vitx benchmark data`."""

from collections.abc import Callable

import numpy as np

from vitx.benchmark import reading
from vitx.config.loader import load_config
from vitx.data import order
from vitx.data.dataset import read_encoded
from vitx.data.images.decode import FORMATS, Encoded
from vitx.training.experiment import Experiment, make_experiment

MODES = {1: "L", 3: "RGB"}


def open_streamed(text: str) -> Experiment:
  """Opens the data of a config, as training does where they do not fit memory.

  Raises:
    ConfigError: of the config or its data.
  """
  config = load_config(text)
  config.data.memory = "never"
  return make_experiment(config, is_trial=True)


def count_steps(experiment: Experiment, examples: int) -> int:
  """Returns the steps that read about so many examples."""
  return max(1, examples // experiment.config.batch_size)


def make_stream(examples: int, text: str) -> Callable[[], None]:
  """Returns what reads the first batches of a config's training once, about so many examples."""
  return read_batches(open_streamed(text), examples)


def read_batches(experiment: Experiment, examples: int) -> Callable[[], None]:
  """Returns what reads the first batches of a training once, about so many examples."""
  batches, steps = experiment.batches(), count_steps(experiment, examples)

  def run() -> None:
    for _ in batches.iterate(0, steps):
      pass

  return run


def make_readers(experiment: Experiment, examples: int) -> dict[str, Callable[[], None]]:
  """Returns what reads the first batches, and what decodes their images by Pillow if they are."""
  readers = {reading.STREAM: read_batches(experiment, examples)}
  config, train = experiment.config, experiment.examples.train
  positions = np.arange(count_steps(experiment, examples) * config.batch_size)
  which = order.example_at(config.data_seed, positions, len(train), config.data.repeats)
  images = [read_encoded(train, i).get("image") for i in which.tolist()]
  stored = [image for image in images if isinstance(image, Encoded)]
  if stored:
    size = experiment.task.train_spec["image"].shape[:2]
    contents = [image.content for image in stored]
    mode = MODES[stored[0].channels]
    readers[reading.PILLOW] = reading.make_pillow(contents, mode, size, FORMATS)
  return readers
