"""Two processes on loopback save one checkpoint, agree on a good one, and one process reads it."""

import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.checkpoints.test_store import assert_same
from vitx.checkpoints.store import CheckpointStore

PROCESS = """
import sys
import jax, numpy as np
process, port, task, directory = int(sys.argv[1]), *sys.argv[2:5]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, process)
assert jax.process_count() == 2
from vitx.checkpoints.errors import CheckpointError
from vitx.checkpoints.store import CheckpointStore

def state(step):
  kernel = np.random.default_rng(step).normal(size=(50, 60)).astype(np.float32)
  return {"w": kernel, "b": kernel[0].astype(jax.numpy.bfloat16), "step": np.int32(step)}

if task == "save":
  with CheckpointStore(directory, keep=2) as store:
    for step in (1, 2, 3):
      store.save(step, state(step), {"rows": step}, best_step=step)
elif task == "resume":
  with CheckpointStore(directory) as store:
    restored = store.restore_latest(state(0))
    assert restored.step == 2 and store.steps() == [2], (restored.step, store.steps())
    np.testing.assert_array_equal(restored.state["w"], state(2)["w"])
    store.save(3, state(3), {"rows": 3})
else:  # the second process looks into a directory of its own
  store = CheckpointStore(directory + ("-other" if process else ""))
  try:
    store.restore_latest(state(0))
  except CheckpointError as error:
    assert "all hosts must see the same directory" in str(error)
  else:
    raise AssertionError("went unnoticed")
jax.experimental.multihost_utils.sync_global_devices("end")
"""


def both(task, directory):
  """Runs two processes to their end."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  command = [sys.executable, "-c", PROCESS]
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
  started = [
    subprocess.Popen([*command, str(process), str(port), task, str(directory)], **pipes)
    for process in range(2)
  ]
  try:
    outputs = [process.communicate(timeout=120)[0] for process in started]
  finally:
    for process in started:
      process.kill()
  for process, output in zip(started, outputs, strict=True):
    assert process.returncode == 0, output


@pytest.mark.slow
def test_two_processes_save_agree_and_resume(tmp_path):
  kernel = np.random.default_rng(3).normal(size=(50, 60)).astype(np.float32)
  both("save", tmp_path)
  with CheckpointStore(tmp_path, read_only=True) as store:
    assert store.steps() == [2, 3]
    restored = store.restore(3)
    assert restored.record == {"rows": 3}
    assert_same({"w": restored.state["w"]}, {"w": kernel})
  both("elsewhere", tmp_path)
  assert CheckpointStore(tmp_path, read_only=True).steps() == [2, 3]
  (tmp_path / "3" / "state" / "manifest.ocdbt").unlink()
  both("resume", tmp_path)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3", "corrupt-3"]
  with CheckpointStore(tmp_path, read_only=True) as store:
    assert_same({"w": store.restore_latest().state["w"]}, {"w": kernel})
