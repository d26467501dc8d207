"""Batches that threads read ahead of their use: in order, a bounded number of them."""

from collections.abc import Callable, Iterator

import grain
import numpy as np

HostBatch = dict[str, np.ndarray]
# Reads some neighboring rows of the batch of a step.
ReadRows = Callable[[int, slice], HostBatch]

# Rows that a thread reads at once: what Grain does for an element costs as much as a small image.
CHUNK = 16
# Batches read before they are asked for.
AHEAD = 2


def stream(read: ReadRows, steps: range, rows: int, threads: int) -> Iterator[HostBatch]:
  """Yields the batches of some steps, read through Grain.

  What is read ahead is at most `AHEAD` batches, or a chunk for each thread if that is more.

  Args:
    read: from a step and some rows of its batch to their arrays; called from several threads.
    steps: whose batches.
    rows: of a batch.
    threads: that read.
  """
  chunks = -(-rows // CHUNK)

  def read_chunk(number: int) -> HostBatch:
    place, chunk = divmod(number, chunks)
    return read(steps[place], slice(chunk * CHUNK, min((chunk + 1) * CHUNK, rows)))

  ahead = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(AHEAD * chunks, threads))
  source = grain.MapDataset.range(len(steps) * chunks).map(read_chunk)
  found = iter(source.to_iter_dataset(ahead))
  try:
    for _ in steps:
      parts = [next(found) for _ in range(chunks)]
      yield {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
  finally:
    found.close()
