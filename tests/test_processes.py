"""Two processes on loopback train as one process with two devices does, and resume."""

import socket
import subprocess
import sys

import numpy as np
import pytest

from tests import runs

pytestmark = pytest.mark.slow  # several processes, each with an import and a compilation


@pytest.fixture
def port():
  """A port that is reserved for the test: the system gives it to no other process."""
  with socket.socket() as server:
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # so that its number can be taken
      server.setsockopt(socket.SOL_SOCKET, option, 1)
    server.bind(("127.0.0.1", 0))
    yield server.getsockname()[1]


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
COORDINATOR = """
import sys
from jax._src.lib import _jax
service = _jax.get_distributed_runtime_service(f"[::]:{sys.argv[1]}", 2)
print("listening", flush=True)
input()
"""


def run_two(workdir, port, *overrides: str, code: int = 0, before: str = "") -> list[str]:
  """Trains in two processes, the second after the code of a trap; returns their outputs."""
  flags = [f"--coordinator=127.0.0.1:{port}", "--processes=2"]
  processes = [
    runs.start(workdir, *overrides, flags=[*flags, f"--process={number}"], before=trap)
    for number, trap in enumerate(("", before))
  ]
  return [runs.finish(process, code) for process in processes]


def test_they_agree_with_two_devices_and_one_signal_stops_both_and_both_go_on(
  finished_run, tmp_path, port
):
  # A signal to the one that does not write.
  trap = runs.at_step(10, "signal.raise_signal(signal.SIGTERM)")
  run_two(tmp_path, port, code=75, before=trap)
  speaker, silent = run_two(tmp_path, port)
  assert "resuming" in speaker and "step " not in silent
  rows, expected = runs.rows(tmp_path), runs.rows(finished_run[0])
  assert [(row["kind"], row["step"]) for row in rows] == [
    (row["kind"], row["step"]) for row in expected
  ]
  for row, one in zip(rows, expected, strict=True):
    assert row.get("examples") == one.get("examples")
    # Processes add in another order, and the difference grows.
    tolerance = 1e-5 if row["step"] <= 20 else 1e-3
    loss = "loss" if row["kind"] == "train" else "nll"
    np.testing.assert_allclose(row[loss], one[loss], rtol=tolerance)


def find_line(output, begin):
  """Returns the only line of a process's output that begins with `begin`.

  Threads of XLA's coordination service log beside the process, so it need not be the last line.
  """
  (line,) = [line for line in output.splitlines() if line.startswith(begin)]
  return line


KILL, FAIL = "os.kill(os.getpid(), 9)", "raise OSError('the disk of this host is full')"


@pytest.mark.parametrize(("victim", "how", "code"), [(0, KILL, -9), (1, FAIL, 1)])
def test_a_process_that_loses_another_ends_with_one_line(tmp_path, port, victim, how, code):
  flags = [f"--coordinator=127.0.0.1:{port}", "--processes=2"]
  settings = ("steps_per_dispatch=1", "duration=10000 steps", *runs.PLAIN)
  both = [
    runs.start(
      tmp_path,
      *settings,
      flags=[*flags, f"--process={number}"],
      before=runs.at_step(10, how) if number == victim else "import os",
    )
    for number in range(2)
  ]
  output = runs.finish(both[victim], code)
  begin = "another process of this run has ended or cannot be reached: "
  line = find_line(runs.finish(both[1 - victim], 1), begin)
  assert line.endswith("with the same command; they continue from the last checkpoint.")
  if how == FAIL:
    assert find_line(output, "OSError") == "OSError: the disk of this host is full"


def test_a_process_that_the_others_do_not_expect_ends_with_a_line(tmp_path, port):
  command = [sys.executable, "-c", COORDINATOR, str(port)]
  with subprocess.Popen(command, text=True, **PIPES) as coordinator:
    try:
      assert coordinator.stdout.readline() == "listening\n"
      flags = [f"--coordinator=127.0.0.1:{port}", "--processes=3", "--process=2"]
      output = runs.finish(runs.start(tmp_path, flags=flags), 1)
    finally:
      coordinator.kill()
  find_line(output, f"ConfigError: --coordinator='127.0.0.1:{port}': the 3 processes of this")
  assert not list(tmp_path.iterdir())
