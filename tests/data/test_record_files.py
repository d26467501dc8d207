"""Records are read by their number from parts of several files."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from array_record.python import array_record_data_source, array_record_module

from vitx.config.errors import ConfigError
from vitx.data.sources.record_files import RecordFiles, start_threads


@pytest.fixture
def ranges(tmp_path):
  """Parts of three files, one of which is empty."""
  parts = []
  for number, (count, start, stop) in enumerate([(50, 3, 23), (10, 5, 5), (30, 0, 30)]):
    path = str(tmp_path / f"{number}.array_record")
    writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
    for i in range(count):
      writer.write(b"%d/%d " % (number, i) * (i + 1))
    writer.close()
    parts.append((path, start, stop))
  return parts


def test_records_agree_with_the_library(ranges):
  ours = RecordFiles(ranges)
  assert len(ours) == 50
  theirs = []
  for path, start, stop in ranges:
    whole = array_record_data_source.ArrayRecordDataSource([path])
    theirs += [whole[i] for i in range(start, stop)]
  assert [ours[i] for i in range(50)] == theirs
  assert ours[0].startswith(b"0/3 ") and ours[20].startswith(b"2/0 ")


def test_threads_share_a_reader(ranges):
  records = RecordFiles(ranges)
  which = np.random.default_rng(0).integers(0, 50, 2000).tolist()
  with ThreadPoolExecutor(8) as pool:
    contents = list(pool.map(records.__getitem__, which))
  assert contents == [records[i] for i in which]


def test_records_beyond_the_parts_do_not_exist(ranges):
  assert len(RecordFiles([])) == 0
  for i in (-1, 50):
    with pytest.raises(IndexError):
      RecordFiles(ranges)[i]


def test_a_process_of_few_threads_is_refused(monkeypatch):
  """ArrayRecord would wait forever."""
  start, spare = threading.Thread.start, [9]

  def start_few(self):
    spare[0] -= 1
    if spare[0] < 0:
      raise RuntimeError("can't start new thread")
    start(self)

  start_threads.cache_clear()
  start_threads()
  start_threads.cache_clear()
  monkeypatch.setattr(threading.Thread, "start", start_few)
  with pytest.raises(ConfigError, match="fewer threads than ArrayRecord's 64: can't start new"):
    start_threads()
