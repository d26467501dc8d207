"""Two processes on loopback save one checkpoint, agree on a good one, and one process reads it."""

import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.checkpoints.test_store import assert_same
from vitx.checkpoints.store import CheckpointStore

PROCESS = """
import sys
import jax, numpy as np
from pathlib import Path
process, port, directory = int(sys.argv[1]), *sys.argv[2:4]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, process)
assert jax.process_count() == 2 and jax.device_count() == 6
from jax.experimental.multihost_utils import sync_global_devices
from vitx.checkpoints.errors import CheckpointError
from vitx.checkpoints.store import CheckpointStore

def state(step):
  kernel = np.random.default_rng(step).normal(size=(50, 60)).astype(np.float32)
  kernel = jax.device_put(kernel, jax.local_devices()[1])
  return {"w": kernel, "b": kernel[0].astype(jax.numpy.bfloat16), "step": np.int32(step)}

with CheckpointStore(directory, keep=2) as store:
  for step in (1, 2, 3):
    store.save(step, state(step), {"rows": step}, stay=(step,))

# The second process looks into a directory of its own.
store = CheckpointStore(directory + ("-other" if process else ""))
try:
  store.restore_latest(state(0))
except CheckpointError as error:
  assert "all hosts must see the same directory" in str(error)
else:
  raise AssertionError("went unnoticed")

sync_global_devices("saved")
if process == 0:
  print("saved", flush=True)
  input()  # until the test has damaged the third
sync_global_devices("damaged")
with CheckpointStore(directory) as store:
  restored = store.restore_latest(state(0))
  assert restored.step == 2 and store.steps() == [2], (restored.step, store.steps())
  np.testing.assert_array_equal(restored.state["w"], state(2)["w"])
  store.save(3, state(3), {"rows": 3})
sync_global_devices("end")
"""


@pytest.mark.slow  # two processes, each with an import
def test_two_processes_save_agree_and_resume_and_another_number_of_devices_restores(tmp_path):
  kernel = np.random.default_rng(3).normal(size=(50, 60)).astype(np.float32)
  pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | {"text": True}
  with socket.socket() as reserved:
    # The port is bound, not listened to: it is reserved for this test, and a coordinator shares it.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("localhost", 0))
    words = [str(reserved.getsockname()[1]), str(tmp_path)]
    started = [
      subprocess.Popen([sys.executable, "-c", PROCESS, str(process), *words], **pipes)
      for process in range(2)
    ]
    try:
      if any(line == "saved\n" for line in started[0].stdout):
        assert jax.device_count() != 6
        with CheckpointStore(tmp_path, read_only=True) as store:
          assert store.steps() == [2, 3]
          restored = store.restore(3)
          assert restored.record == {"rows": 3}
          assert_same({"w": restored.state["w"]}, {"w": kernel})
        (tmp_path / "3" / "state" / "manifest.ocdbt").unlink()
      outputs = [process.communicate("\n", timeout=240) for process in started]
    finally:
      for process in started:
        process.kill()
  for process, output in zip(started, outputs, strict=True):
    assert process.returncode == 0, output
  assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3", "corrupt-3"]
  with CheckpointStore(tmp_path, read_only=True) as store:
    assert_same({"w": store.restore_latest().state["w"]}, {"w": kernel})
