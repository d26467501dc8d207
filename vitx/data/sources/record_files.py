"""Random access to the records of ArrayRecord files, from several threads at once."""

import functools
import itertools
import threading
from collections.abc import Sequence

from array_record.python import array_record_module

from vitx.data.dataset import find_part
from vitx.data.splits import FileRange
from vitx.files import reading

# Records are read in a random order, so reading ahead is useless.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_BUFFER = 32768  # bytes
_THREADS = 64  # the reader needs this many threads in a process, and hangs if it gets fewer


@functools.cache
def start_threads() -> None:
  """Starts and ends as many threads as the reader of ArrayRecord needs, so that it does not hang.

  Limits of virtual memory (`ulimit -v`), of processes (`ulimit -u`) or of a container raise here.
  """
  end, started = threading.Event(), []
  try:
    problem = f"data.source: this process may start fewer threads than ArrayRecord's {_THREADS}"
    with reading(problem):
      for _ in range(_THREADS):
        thread = threading.Thread(target=end.wait, daemon=True)
        thread.start()
        started.append(thread)
  finally:
    end.set()
    for thread in started:
      thread.join()


class RecordFiles:
  """The records of several files, read as one sequence.

  A record is read as a range of one record. array_record's own `ArrayRecordDataSource` goes
  through the whole file instead, which takes ten times as long in a file of 50,000 records.

  Args:
    ranges: The (file name, first record, end) of each range of records.
  """

  def __init__(self, ranges: Sequence[FileRange]):
    self._ranges = ranges
    self._ends = list(itertools.accumulate(stop - start for _, start, stop in ranges))
    self._readers: dict[int, array_record_module.ArrayRecordReader] = {}
    self._lock = threading.Lock()

  def __len__(self) -> int:
    return self._ends[-1] if self._ends else 0

  def __getitem__(self, i: int) -> bytes:
    if not 0 <= i < len(self):
      raise IndexError(i)
    which, place = self.find(i)
    with self._lock:  # all threads share the reader of a file
      if which not in self._readers:
        self._readers[which] = array_record_module.ArrayRecordReader(
          self._ranges[which][0], _OPTIONS, file_reader_buffer_size=_BUFFER
        )
    return self._readers[which].read(place, place + 1)[0]

  def find(self, i: int) -> tuple[int, int]:
    """Returns the index of the range with record `i`, and the record's index in its file."""
    which, place = find_part(self._ends, i)
    return which, self._ranges[which][1] + place
