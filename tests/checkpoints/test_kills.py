"""SIGKILL at any moment of saving and deleting loses no complete checkpoint."""

import subprocess
import sys
import time

import numpy as np
import pytest

from tests.checkpoints.test_store import assert_same
from vitx.checkpoints.store import CheckpointStore

ENDLESS = """
import sys, itertools
import numpy as np
from vitx.checkpoints.store import CheckpointStore
with CheckpointStore(sys.argv[1]) as store:
  restored = store.restore_latest()
  for step in itertools.count(0 if restored is None else restored.step + 1):
    store.save(step, {"w": np.full((300, 1000), step, np.float32)}, {"rows": step})
    print(step, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path):
  rng = np.random.default_rng(0)
  before, under_way = -1, 0
  for _ in range(6):
    process = subprocess.Popen(
      [sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    for _ in range(4):  # by progress: the fourth save has begun, so the third is complete
      line = process.stdout.readline()
    time.sleep(rng.uniform(0, 0.1))
    process.kill()
    process.wait()
    process.stdout.close()
    under_way += any("orbax-checkpoint-tmp" in path.name for path in tmp_path.iterdir())
    with CheckpointStore(tmp_path) as store:
      restored = store.restore_latest()
      assert restored.step >= int(line) - 1 > before
      assert restored.record == {"rows": restored.step}
      assert_same(restored.state, {"w": np.full((300, 1000), restored.step, np.float32)})
      assert len(store.steps()) >= 2
    assert not list(tmp_path.glob("corrupt-*"))
    before = restored.step
  assert under_way >= 2
