"""Batches for training and for evaluation.

A batch is a dict of NumPy arrays. A training batch is a pure function of the seed and the step.
Examples that fit into memory are read once. Other examples are read again for each batch, which
gives equal bytes. A global batch of B rows is divided among the processes: process p has the
b = B / process_count rows from p*b to (p+1)*b - 1.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np

from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings
from vitx.data import order
from vitx.data.dataset import ArraySpec, Example, Examples
from vitx.data.in_memory import InMemory, blank_rows, keep, store_row, transform_one
from vitx.data.readable import listing_all
from vitx.data.stream import HostBatch, stream
from vitx.data.transform import Transform


def share(batch_size: int, process_index: int, process_count: int) -> np.ndarray:
  """Returns a process's row numbers in the global batch, int64 (batch_size / process_count,)."""
  rows = batch_size // process_count
  return np.arange(process_index * rows, (process_index + 1) * rows)


class TrainBatches:
  """The endless sequence of training batches, with random access by step.

  A batch has b = batch_size / process_count rows. Its arrays are those that the transform returns,
  stacked, and `index`, int32 (b,), the number of each row in the global batch. The device folds
  this number into the keys of its random draws. If the task asks for it, `parity`, int32 (b,), is 0
  or 1 by turns in the epochs of an example, and drawn for its first.

  Args:
    examples: The training examples. The constructor reads all of them if `data.memory` keeps them.
    data: The config's `data`, of which these fields are read: memory, threads, repeats (see
      `order.example_at` and `order.places`), sampling (see `order.BalancedOrder`).
    transform: The transform of each example; its random bits depend on seed, step and row number.
    batch_size: The number of examples in a batch over all processes, a multiple of their number.
    seed: The data seed, for the order of the examples and the bits of the transform.
    process_index: The index of this process.
    process_count: The number of processes that share each batch.
    with_parity: Whether batches have `parity`.

  Attributes:
    storage: The arrays from which batches take their rows; None if they are not in memory.
  """

  def __init__(
    self,
    examples: Examples,
    data: DataSettings,
    *,
    transform: Transform,
    batch_size: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    with_parity: bool = False,
  ):
    labels, repeats, threads = getattr(examples, "labels", None), data.repeats, data.threads
    if data.sampling == "balanced" and (labels is None or labels.ndim != 1):
      raise ConfigError("data.sampling='balanced' needs one class for each example.")
    if data.sampling == "balanced" and with_parity:  # an example has no epochs of equal length
      raise ConfigError("data.sampling='balanced' and augment.alternate_flips exclude each other.")
    self._rows = share(batch_size, process_index, process_count)
    self._batch_size = batch_size
    self._seed = seed
    self._places = order.places(self._rows, batch_size, repeats)
    self._transform = transform
    self._threads = threads
    self._examples = keep(examples, transform=transform, memory=data.memory, threads=threads)
    self.storage = self._examples.storage if isinstance(self._examples, InMemory) else None
    find: Callable[..., np.ndarray] = functools.partial(order.example_at, seed, count=len(examples))
    if data.sampling == "balanced":
      find = order.BalancedOrder(seed, np.asarray(labels)).example_at
    self._order = functools.partial(find, repeats=repeats)
    self._first_parity = None
    if with_parity:
      bits = order.generator(seed, order.PARITY).random_raw(len(examples))
      self._first_parity = (bits & np.uint64(1)).astype(np.int64)

  @property
  def spec(self) -> dict[str, ArraySpec]:
    """Returns the shape and dtype of each array of an example in a batch, except `index`."""
    parity = {} if self._first_parity is None else {"parity": ArraySpec((), "int32")}
    return {name: ArraySpec(x.shape, x.dtype.name) for name, x in self._first.items()} | parity

  def indices(self, step: int) -> HostBatch:
    """Returns the indices with which a batch is gathered from the arrays of `storage`.

    The dict has `example`, the index of each example in the arrays, and the numbers that batches
    have, `index` and perhaps `parity`. Each is int32 (b,) for the b rows of this process.
    """
    assert isinstance(self._examples, InMemory)
    which, numbers = self._find(step, slice(None))
    return {"example": self._examples.indices[which].astype(np.int32), **numbers}

  def batch(self, step: int) -> HostBatch:
    """Returns this process's share of the batch of one step."""
    if self.storage is not None:
      numbers, arrays = self.indices(step), self.storage.arrays
      example = numbers.pop("example")
      return {key: np.take(x, example, axis=0) for key, x in arrays.items()} | numbers
    return next(self.iterate(step, step + 1))

  def iterate(self, start: int, stop: int) -> Iterator[HostBatch]:
    """Yields the batches of the steps start ... stop-1."""
    steps = range(start, stop)
    if self.storage is not None:
      yield from map(self.batch, steps)
    else:
      yield from stream(self._read, steps, len(self._rows), self._threads)

  @functools.cached_property
  def _first(self) -> Example:
    """Returns the transformed first example; all examples have its shapes and dtypes."""
    return self._transform_example(0, 0, 0)

  def _read(self, step: int, rows: slice) -> HostBatch:
    """Reads the given rows of this process's share of a step's batch."""
    which, numbers = self._find(step, rows)
    batch = blank_rows(self._first, len(which))
    for place, (i, row) in enumerate(zip(which.tolist(), numbers["index"].tolist(), strict=True)):
      store_row(batch, place, self._transform_example(i, row, step), self._examples, i)
    return {**batch, **numbers}

  def _find(self, step: int, rows: slice) -> tuple[np.ndarray, HostBatch]:
    """Returns the examples of the given rows of a step's share, and the rows' numbers by name."""
    positions = step * self._batch_size + self._places[rows]
    which, numbers = self._order(positions), {"index": self._rows[rows].astype(np.int32)}
    if (first := self._first_parity) is not None:
      numbers["parity"] = ((first[which] + positions // len(first)) % 2).astype(np.int32)
    return which, numbers

  def _transform_example(self, i: int, row: int, step: int) -> Example:
    """Transforms example `i` with the random bits of a row and a step; returns its arrays."""
    bits = None
    if self._transform.draws:
      bits = order.generator(self._seed, order.TRANSFORM, row, step)
    return transform_one(self._examples, self._transform, i, bits)


def evaluation_batches(
  examples: Examples,
  *,
  transform: Transform,
  batch_size: int,
  threads: int,
  process_index: int = 0,
  process_count: int = 1,
) -> Iterator[HostBatch]:
  """Yields the batches of an evaluation, which contain every example exactly once.

  Every process gets equally many batches of b = batch_size / process_count rows. The last batch may
  be padded. A batch has the arrays that the transform returns, stacked; `mask`, bool (b,), False in
  the rows of padding; and `example`, int32 (b,), the index of each example, -1 in the rows of
  padding. To evaluate often, pass the examples that `in_memory.keep` returned.

  Args:
    examples: The examples to evaluate on.
    transform: The transform of each example, which draws no random bits.
    batch_size: The number of examples in a batch over all processes, a multiple of their number.
    threads: The number of threads that read and transform.
    process_index: The index of this process.
    process_count: The number of processes that share each batch.
  """
  rows = share(batch_size, process_index, process_count)
  count = len(examples)
  steps = range(-(-count // batch_size))

  def read(step: int, some: slice) -> HostBatch:
    which = step * batch_size + rows[some]
    mask = which < count
    batch = blank_rows(first, len(which))
    if isinstance(examples, InMemory):
      for key, array in examples.storage.arrays.items():
        batch[key][mask] = array[examples.indices[which[mask]]]
    else:
      for place, i in enumerate(which[mask].tolist()):  # padding comes last
        store_row(batch, place, transform_one(examples, transform, i), examples, i)
    return {**batch, "mask": mask, "example": np.where(mask, which, -1).astype(np.int32)}

  with listing_all(examples, threads):
    first = transform_one(examples, transform, 0) if count else {}
    if isinstance(examples, InMemory):  # nothing is read, so no threads are needed
      yield from (read(step, slice(None)) for step in steps)
    else:
      yield from stream(read, steps, len(rows), threads)
