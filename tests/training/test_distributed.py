"""Who is who: from flags, from the cluster's environment, or alone."""

import os
import subprocess
import sys

import pytest

from tests import runs
from vitx.errors import ConfigError
from vitx.training import distributed


@pytest.fixture
def calls(monkeypatch):
  made = []
  monkeypatch.setattr(distributed.jax.distributed, "initialize", lambda *a: made.append(a))
  for name in (*distributed.COUNTS, *distributed.HOSTS, *distributed.SEVERAL):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr(distributed, "_on_tpu_vm", lambda: False)
  monkeypatch.setattr(distributed.rendezvous, "meet", lambda *a: None)
  return made


def test_alone(calls):
  distributed.initialize()
  assert calls == []


def test_flags(calls):
  distributed.initialize("host:1", 2, 1)
  assert calls == [("host:1", 2, 1)]


@pytest.mark.parametrize("given", [("host:1", None, None), (None, 2, 0), ("host:1", 2, None)])
def test_flags_belong_together(calls, given):
  with pytest.raises(ConfigError, match="belong together"):
    distributed.initialize(*given)
  assert calls == []


def test_a_process_out_of_range(calls):
  with pytest.raises(ConfigError, match=r"--process=2 must lie in 0\.\.1"):
    distributed.initialize("host:1", 2, 2)


@pytest.mark.parametrize(
  ("name", "value", "several"),
  [
    ("SLURM_STEP_NUM_TASKS", "4", True),
    ("SLURM_STEP_NUM_TASKS", "1", False),
    ("OMPI_COMM_WORLD_SIZE", "2", True),
    ("TPU_WORKER_HOSTNAMES", "a,b", True),
    ("TPU_WORKER_HOSTNAMES", "localhost", False),
    ("JOB_COMPLETION_INDEX", "0", True),
    ("MEGASCALE_COORDINATOR_ADDRESS", "a", True),
  ],
)
def test_clusters(calls, monkeypatch, name, value, several):
  monkeypatch.setenv(name, value)
  distributed.initialize()
  assert bool(calls) == several


def test_a_tpu_machine_without_a_pod_is_alone(calls, monkeypatch):
  def no_cluster():
    raise ValueError("coordinator_address should be defined.")

  monkeypatch.setattr(distributed, "_on_tpu_vm", lambda: True)
  monkeypatch.setattr(distributed.jax.distributed, "initialize", no_cluster)
  distributed.initialize()


ALONE = """
import socket, sys
from vitx.cli.main import main
from vitx.training import rendezvous
rendezvous.PATIENCE = 4
with socket.socket() as free:
  free.bind(("", 0))
  port = free.getsockname()[1]
flags = [f"--coordinator=localhost:{port}", "--processes=2", "--process=0"]
sys.exit(main(["train", "--config", "digits", "--workdir", "run", *flags]))
"""


@pytest.mark.slow  # waits for a process that does not come
def test_process_0_alone_ends_in_one_line(tmp_path):
  environment = os.environ | {"PYTHONPATH": str(runs.ROOT), "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    [sys.executable, "-c", ALONE],
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 1, done.stderr
  last = done.stderr.splitlines()[-1]
  assert (
    last.startswith("ConfigError: --coordinator=")
    and "of 2 processes 1 did not come within 4 s" in last
  )
  assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())
