"""Reads batches ahead in threads, in order and up to a limited number."""

from collections.abc import Callable, Iterator

import numpy as np

HostBatch = dict[str, np.ndarray]
# A function that reads a range of rows of the batch of a step.
ReadRows = Callable[[int, slice], HostBatch]

# A thread reads this many rows at once: one element costs Grain as much time as a small image.
CHUNK = 16
# This many batches are read ahead.
AHEAD = 2


def stream(read: ReadRows, steps: range, rows: int, threads: int) -> Iterator[HostBatch]:
  """Yields the batches of some steps, which threads of Grain read ahead.

  At most `AHEAD` batches are read ahead, or `CHUNK` rows for each thread if that is more.

  Args:
    read: A function (step, rows) that returns the arrays of a range of rows of a step's batch; it
      is called from several threads.
    steps: The steps to read.
    rows: The number of rows in a batch.
    threads: The number of reading threads.
  """
  import grain  # slow to import, and examples in memory need no threads

  chunks = -(-rows // CHUNK)

  def read_chunk(number: int) -> HostBatch:
    place, chunk = divmod(number, chunks)
    return read(steps[place], slice(chunk * CHUNK, min((chunk + 1) * CHUNK, rows)))

  ahead = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(AHEAD * chunks, threads))
  source = grain.MapDataset.range(len(steps) * chunks).map(read_chunk)
  elements = iter(source.to_iter_dataset(ahead))
  try:
    for _ in steps:
      parts = [next(elements) for _ in range(chunks)]
      yield {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
  finally:
    elements.close()
