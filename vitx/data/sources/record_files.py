"""Records of ArrayRecord files by random access, from several threads at once."""

import bisect
import itertools
import threading
from collections.abc import Sequence
from typing import Protocol

from array_record.python import array_record_module

# Nothing is read ahead: the next record lies elsewhere.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_BUFFER = 32768  # bytes


class FileInstruction(Protocol):
  """Which records of a file belong to a split, as TFDS says it: `take` of them after `skip`."""

  filename: str
  skip: int
  take: int


class RecordFiles:
  """The records of some files, one after the other.

  `ArrayRecordDataSource` is the library's own. To get one record it goes through all of its file,
  which for a file of 50,000 takes ten times as long as reading the range of one record.
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
      raise IndexError(f"record {i} of {len(self)}")
    which = bisect.bisect_right(self._ends, i)
    file = self._files[which]
    place = file.skip + file.take - self._ends[which] + i
    return self._reader(which).read(place, place + 1)[0]

  def _reader(self, which: int) -> array_record_module.ArrayRecordReader:
    """Returns the reader of a file, opened at its first use; one serves all threads."""
    reader = self._readers.get(which)
    if reader is None:
      with self._lock:
        reader = self._readers.get(which)
        if reader is None:
          reader = array_record_module.ArrayRecordReader(
            self._files[which].filename, _OPTIONS, file_reader_buffer_size=_BUFFER
          )
          self._readers[which] = reader
    return reader
