"""Two processes on loopback train as one process with two devices, and checkpoint and resume."""

import signal
import socket
import time

import numpy as np
import pytest

from tests import runs

pytestmark = pytest.mark.slow  # several processes, each with an import and a compilation

LONG = ("duration=40 steps", "log_every=1 steps")


def free_port() -> int:
  with socket.socket() as server:
    server.bind(("127.0.0.1", 0))
    return server.getsockname()[1]


def start_two(workdir, *overrides: str):
  port = free_port()
  return [
    runs.start(
      workdir,
      *overrides,
      flags=[f"--coordinator=127.0.0.1:{port}", "--processes=2", f"--process={number}"],
    )
    for number in (0, 1)
  ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """An uninterrupted run of two processes."""
  workdir = tmp_path_factory.mktemp("processes")
  for process in start_two(workdir, *LONG):
    runs.finish(process)
  return workdir


def losses(workdir) -> np.ndarray:
  return np.array([row["loss"] for row in runs.rows(workdir) if row["kind"] == "train"])


def test_two_processes_agree_with_two_devices(whole, tmp_path):
  runs.finish(runs.start(tmp_path, *LONG, devices=2))
  one, two = losses(tmp_path), losses(whole)
  assert len(one) == len(two) == 40
  np.testing.assert_allclose(two[:20], one[:20], rtol=1e-5)
  figures = [
    next(row for row in runs.rows(workdir) if row["kind"] == "validation")
    for workdir in (tmp_path, whole)
  ]
  assert figures[0]["examples"] == figures[1]["examples"] == 144
  assert figures[1]["nll"] == pytest.approx(figures[0]["nll"], rel=1e-4)


def test_one_signal_stops_both_and_both_go_on(whole, tmp_path):
  stopped = tmp_path / "stopped"
  processes = start_two(stopped, *LONG)
  metrics, deadline = stopped / "metrics.jsonl", time.monotonic() + 240
  while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 5):
    assert all(process.poll() is None for process in processes) and time.monotonic() < deadline
    time.sleep(0.001)
  processes[1].send_signal(signal.SIGTERM)  # the one that does not write
  for process in processes:
    runs.finish(process, code=75)
  for process in start_two(stopped, *LONG):
    assert "resuming" in runs.finish(process)
  assert runs.rows(stopped) == runs.rows(whole)
