"""Random access to the records of ArrayRecord files, from several threads at once."""

import bisect
import functools
import itertools
import threading
from collections.abc import Sequence
from typing import Protocol

from array_record.python import array_record_module

from vitx.config.errors import ConfigError

# Reading ahead is useless, as the next record is elsewhere.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_BUFFER = 32768  # bytes


_THREADS = 64  # the reader's threads for all files of a process; with fewer it hangs


@functools.cache
def check_threads() -> None:
  """Raises ConfigError, before a file is opened, unless this process may start enough threads.

  Limits of virtual memory (`ulimit -v`), of processes (`ulimit -u`) or of a container can prevent
  this.
  """
  end, started = threading.Event(), []
  try:
    for _ in range(_THREADS):
      thread = threading.Thread(target=end.wait, daemon=True)
      thread.start()
      started.append(thread)
  except (RuntimeError, MemoryError) as error:
    raise ConfigError(
      f"data.source: the reader of ArrayRecord needs {_THREADS} threads, and this process"
      f" may start only {len(started)} ({error}). Raise the limit of virtual memory"
      " (ulimit -v), of processes (ulimit -u) or of the container, or use folder:PATH."
    ) from error
  finally:
    end.set()
    for thread in started:
      thread.join()


class FileInstruction(Protocol):
  """The TFDS description of a split's records in a file: `take` of them after `skip`."""

  filename: str
  skip: int
  take: int


class RecordFiles:
  """The concatenated records of some files.

  The library's own `ArrayRecordDataSource` goes through the whole file to get one record. In a file
  of 50,000 records, that takes ten times as long as reading a range of one record.
  """

  def __init__(self, files: Sequence[FileInstruction]):
    self._files = files
    self._ends = list(itertools.accumulate(file.take for file in files))
    self._readers: dict[int, array_record_module.ArrayRecordReader] = {}
    self._lock = threading.Lock()

  def __len__(self) -> int:
    return self._ends[-1] if self._ends else 0

  def __getitem__(self, i: int) -> bytes:
    if not 0 <= i < len(self):
      raise IndexError(f"there is no record {i} among {len(self)} records")
    which, place = self.find(i)
    with self._lock:  # all threads share the reader of a file
      if which not in self._readers:
        self._readers[which] = array_record_module.ArrayRecordReader(
          self._files[which].filename, _OPTIONS, file_reader_buffer_size=_BUFFER
        )
    return self._readers[which].read(place, place + 1)[0]

  def find(self, i: int) -> tuple[int, int]:
    """Returns the number of the file that has a record, and the record's number in that file."""
    which = bisect.bisect_right(self._ends, i)
    file = self._files[which]
    return which, file.skip + file.take - self._ends[which] + i
