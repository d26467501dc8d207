"""Records are read by their number from parts of several files."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from array_record.python import array_record_data_source, array_record_module

from vitx.data.sources.record_files import RecordFiles, check_threads


@pytest.fixture
def ranges(tmp_path):
  """Parts of three files, one of which is empty."""
  found = []
  for number, (count, start, stop) in enumerate([(50, 3, 23), (10, 5, 5), (30, 0, 30)]):
    path = str(tmp_path / f"{number}.array_record")
    writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
    for i in range(count):
      writer.write(b"%d/%d " % (number, i) * (i + 1))
    writer.close()
    found.append((path, start, stop))
  return found


def test_records_are_those_of_the_librarys_source(ranges):
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
    found = list(pool.map(records.__getitem__, which))
  assert found == [records[i] for i in which]


@pytest.mark.parametrize("i", [-1, 50])
def test_there_is_no_record_beyond_the_parts(ranges, i):
  with pytest.raises(IndexError, match=f"no record {i} among 50"):
    RecordFiles(ranges)[i]


def test_no_files_have_no_records():
  assert len(RecordFiles([])) == 0


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_NPROC"])
def test_a_process_of_few_threads_is_told_and_waits_for_nothing(limit):
  """A process that can start few threads gets an error, where ArrayRecord would wait for ever.

  Each check runs in a process of its own.
  """
  code = f"""
import os, resource, threading
from vitx.data.sources import record_files
record_files.check_threads.cache_clear()
if {limit!r} == "RLIMIT_AS":
  used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
  resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, resource.RLIM_INFINITY))
else:  # root has no such limit
  start, left = threading.Thread.start, [9]
  def start_few(self):
    left[0] -= 1
    if left[0] < 0:
      raise RuntimeError("can't start new thread")
    start(self)
  threading.Thread.start = start_few
try:
  record_files.check_threads()
except record_files.ConfigError as error:
  print(error)
"""
  ran = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
  )
  assert re.search(
    r"needs 64 threads, .* may start only \d+ \(can't start new thread\)\. Raise", ran.stdout
  )


def test_a_process_of_enough_threads_reads():
  check_threads.cache_clear()
  check_threads()
