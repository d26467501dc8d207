"""SIGKILL at any moment of saving and deleting loses no complete checkpoint."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.checkpoints.test_store import assert_same
from vitx.checkpoints.store import CheckpointStore

# For each number that this program reads, it forks a process that saves. The fork is killed at
# this number of file operations after its fourth save began.
ENDLESS = """
import itertools, os, signal, sys
import numpy as np
from vitx.checkpoints.store import CheckpointStore

OPERATIONS = ("open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir")
passed = None

def die(event, arguments):
  if passed and event in OPERATIONS and sys.argv[1] in str(arguments[0]):
    if next(passed) == moment:
      os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(die)
for line in sys.stdin:
  moment, process = int(line), os.fork()
  if process:
    print("ended", os.waitpid(process, 0)[1], flush=True)
    continue
  try:
    with CheckpointStore(sys.argv[1]) as store:
      restored = store.restore_latest()
      first = 0 if restored is None else restored.step + 1
      for step in itertools.count(first):
        passed = itertools.count() if step == first + 3 else passed
        store.save(step, {"w": np.full((300, 1000), step, np.float32)}, {"rows": step})
        print(step, flush=True)
  finally:
    os._exit(1)
"""


@pytest.mark.slow  # a whole process, with an import
def test_a_store_survives_a_kill_at_any_moment(tmp_path):
  before, under_way = -1, 0
  process = subprocess.Popen(
    [sys.executable, "-c", ENDLESS, str(tmp_path)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # a process that forks must have one thread
  )
  with process:
    for moment in range(0, 32, 4):  # one save with its deletion is some thirty operations
      print(moment, file=process.stdin, flush=True)
      printed = []
      for line in process.stdout:
        printed.append(line.strip())
        if line.startswith("ended"):
          break
      assert len(printed) >= 4 and printed[-1] == f"ended {int(signal.SIGKILL)}", printed
      under_way += any("orbax-checkpoint-tmp" in path.name for path in tmp_path.iterdir())
      with CheckpointStore(tmp_path) as store:
        restored = store.restore_latest()
        assert restored.step >= int(printed[-2]) - 1 > before
        assert restored.record == {"rows": restored.step}
        assert_same(restored.state, {"w": np.full((300, 1000), restored.step, np.float32)})
        assert len(store.steps()) >= 2
      assert not list(tmp_path.glob("corrupt-*"))
      before = restored.step
    process.stdin.close()
  assert under_way >= 2
