"""Images that fit memory are decoded once: indexing an array outruns every loader."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
from tqdm import tqdm

from vitx.data.dataset import Examples
from vitx.data.images.decode import SquareImages, check_fit, stored
from vitx.errors import ConfigError, listing, nearest

MEMORY = ("auto", "always", "never")
# Images that a decoding thread takes at once.
_CHUNK = 64


class Decoded:
  """Examples whose stored images are in memory.

  Attributes:
    images: uint8 (n, S, S, C).
    labels: int32 (n,).
  """

  def __init__(self, examples: Examples, stored_size: int, fit: str, threads: int):
    self._examples = examples
    count = len(examples)
    first = stored(examples.image(0), stored_size, fit)
    self.images = np.empty((count, *first.shape), np.uint8)
    self.labels = np.empty(count, np.int32)

    def decode(start: int) -> int:
      stop = min(start + _CHUNK, count)
      for i in range(start, stop):
        self.images[i] = stored(examples.image(i), stored_size, fit)
        self.labels[i] = examples.label(i)
      return stop - start

    progress = tqdm(
      total=count, desc="decoding", delay=3, mininterval=1, leave=False, unit="images"
    )
    with progress, ThreadPoolExecutor(threads) as pool:
      try:
        for done in pool.map(decode, range(0, count, _CHUNK)):
          progress.update(done)
      except BaseException:
        pool.shutdown(cancel_futures=True)
        raise

  def __len__(self) -> int:
    return len(self.labels)

  def image(self, i: int) -> np.ndarray:
    return self.images[i]

  def label(self, i: int) -> int:
    return int(self.labels[i])

  def name(self, i: int) -> str:
    return self._examples.name(i)


def keep(
  examples: Examples, *, transform: SquareImages, memory: str, threads: int
) -> Examples | Decoded:
  """Decodes all examples once and keeps them, if `memory` says so; else returns them as they are.

  Args:
    examples: one role of a source.
    stored_size: side S of the images kept.
    fit: center | squash; `random` draws another crop each time, so it cannot be kept.
    memory: always | never | auto: if they take at most half of the memory that is available now.
    threads: decoding threads.

  Raises:
    ConfigError: unknown value, `always` with `random`, no examples, an unreadable image.
  """
  stored_size, fit = transform.decode_size, transform.resize_mode
  check_fit(fit)
  if memory not in MEMORY:
    raise ConfigError(
      f"data.memory={memory!r} is unknown.{nearest(memory, MEMORY)} Valid: {listing(MEMORY)}."
    )
  if threads < 1:
    raise ConfigError(f"data.threads={threads!r}: decoding needs at least one thread.")
  if memory == "always" and fit == "random":
    raise ConfigError(
      "data.memory='always' cannot keep the crops of data.fit='random', which are drawn anew for"
      " each step. Set data.memory='auto', or data.fit='center' and augment.random_resized_crop."
    )
  if not len(examples):
    raise ConfigError("data.source: a role has no examples. See data.splits and data.select.")
  if memory == "never" or fit == "random" or isinstance(examples, Decoded):
    return examples
  if memory == "auto":
    channels = examples.image(0).shape[-1]
    needed = len(examples) * stored_size**2 * channels
    if needed > psutil.virtual_memory().available / 2:
      return examples
  return Decoded(examples, stored_size, fit, threads)
