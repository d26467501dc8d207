"""Batches as pure functions of (seed, step): from memory where the images fit, else streamed.

Both ways give the same bytes. A batch is a dict of NumPy arrays; of a global batch of B process p
holds the rows p*b ... (p+1)*b-1, b = B / process_count.
"""

from collections.abc import Callable, Iterator

import grain
import numpy as np

from vitx.data import order
from vitx.data.dataset import Examples
from vitx.data.images.decode import SquareImages, check_fit, stored
from vitx.data.in_memory import Decoded, keep
from vitx.errors import ConfigError

Batch = dict[str, np.ndarray]
Element = dict[str, np.ndarray | np.generic]


def share(batch_size: int, process_index: int, process_count: int) -> np.ndarray:
  """Returns which rows of the global batch a process holds, int64 (b,).

  Raises:
    ConfigError: the batch does not divide among the processes.
  """
  if batch_size < 1 or batch_size % process_count:
    low = batch_size // process_count * process_count
    fitting = [size for size in (low, low + process_count) if size > 0]
    raise ConfigError(
      f"batch_size={batch_size} does not divide among {process_count} processes."
      f" The nearest that do: {', '.join(map(str, fitting))}."
    )
  rows = batch_size // process_count
  return np.arange(process_index * rows, (process_index + 1) * rows)


class TrainBatches:
  """The endless sequence of training batches, each reachable by its step.

  A batch holds image uint8 (b, S, S, C), label int32 (b,) and index int32 (b,), the position in the
  global batch, from which the device folds its random keys.

  Args:
    examples: the source's `train`; decoded here and now if they are to be kept in memory.
    batch_size: over all processes.
    seed: the data seed: order of the examples and, for `random`, the crops.
    stored_size: side S of the images (`decode.stored_size`).
    fit: center | squash | random, see `decode.stored`.
    memory: auto | always | never, see `keep`.
    threads: decoding threads.
    process_index: this process.
    process_count: number of processes that share each batch.

  Raises:
    ConfigError: an unknown value, a batch that does not divide, an unreadable image.
  """

  def __init__(
    self,
    examples: Examples,
    *,
    batch_size: int,
    seed: int,
    transform: SquareImages,
    memory: str,
    threads: int,
    process_index: int = 0,
    process_count: int = 1,
  ):
    self._rows = share(batch_size, process_index, process_count)
    self._batch_size = batch_size
    self._seed = seed
    self._stored_size = transform.decode_size
    self._fit = transform.resize_mode
    self._threads = threads
    self._examples = keep(examples, transform=transform, memory=memory, threads=threads)
    self._count = len(self._examples)

  @property
  def in_memory(self) -> bool:
    """Whether the decoded images are kept."""
    return isinstance(self._examples, Decoded)

  def batch(self, step: int) -> Batch:
    """Returns this process's share of the batch of one step."""
    if isinstance(self._examples, Decoded):
      which = order.example_at(self._seed, step * self._batch_size + self._rows, self._count)
      return {
        "image": np.take(self._examples.images, which, axis=0),
        "label": self._examples.labels[which],
        "index": self._rows.astype(np.int32),
      }
    return next(self.iterate(step, step + 1))

  def iterate(self, start: int, stop: int) -> Iterator[Batch]:
    """Yields the batches of the steps start ... stop-1."""
    if self.in_memory:
      for step in range(start, stop):
        yield self.batch(step)
      return
    rows = len(self._rows)
    yield from _stream(self._element, range(start * rows, stop * rows), rows, self._threads)

  def _element(self, position: int) -> Element:
    """Reads one example; positions count this process's rows through all steps."""
    step, row = divmod(position, len(self._rows))
    index = int(self._rows[row])
    which = int(order.example_at(self._seed, step * self._batch_size + index, self._count))
    bits = order.generator(self._seed, order.CROP, index, step) if self._fit == "random" else None
    return {
      "image": stored(self._examples.image(which), self._stored_size, self._fit, bits),
      "label": np.int32(self._examples.label(which)),
      "index": np.int32(index),
    }


def evaluation_batches(
  examples: Examples,
  *,
  batch_size: int,
  transform: SquareImages,
  threads: int,
  process_index: int = 0,
  process_count: int = 1,
) -> Iterator[Batch]:
  """Yields every example exactly once over all processes, in as many batches in each of them.

  A batch holds image uint8 (b, S, S, C), label int32 (b,), mask bool (b,) and example int32 (b,).
  Where the mask is False the row is padding: a black image of label 0, example -1. `random`
  evaluates as `center`. To evaluate often, pass what `keep` returns.

  Raises:
    ConfigError: a batch that does not divide, an unreadable image.
  """
  stored_size, fit = transform.decode_size, transform.resize_mode
  check_fit(fit)
  rows = share(batch_size, process_index, process_count)
  fit = "center" if fit == "random" else fit
  count = len(examples)
  blank = np.zeros_like(stored(examples.image(0), stored_size, fit)) if count else None

  def element(position: int) -> Element:
    step, row = divmod(position, len(rows))
    which = step * batch_size + int(rows[row])
    if which >= count:
      return _evaluated(blank, 0, False, -1)
    image = stored(examples.image(which), stored_size, fit)
    return _evaluated(image, examples.label(which), True, which)

  steps = -(-count // batch_size)
  if isinstance(examples, Decoded):
    threads = 0  # nothing to decode, so nothing to wait for
  return _stream(element, range(steps * len(rows)), len(rows), threads)


def _evaluated(image: np.ndarray | None, label: int, mask: bool, example: int) -> Element:
  return {
    "image": np.asarray(image),
    "label": np.int32(label),
    "mask": np.bool_(mask),
    "example": np.int32(example),
  }


def _stream(
  element: Callable[[int], Element], positions: range, batch_size: int, threads: int
) -> Iterator[Batch]:
  """Yields batches of the elements at `positions`, read ahead by `threads` through Grain."""
  ahead = grain.ReadOptions(
    num_threads=threads, prefetch_buffer_size=2 * batch_size if threads else 0
  )
  elements = grain.MapDataset.range(positions.start, positions.stop).map(element)
  yield from elements.to_iter_dataset(ahead).batch(batch_size, drop_remainder=True)
