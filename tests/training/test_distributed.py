"""Who is who: from flags, from the cluster's environment, or alone."""

import pytest

from vitx.config.errors import ConfigError
from vitx.training import distributed


@pytest.fixture
def calls(monkeypatch):
  made = []
  monkeypatch.setattr(distributed.jax.distributed, "initialize", lambda *a, **_: made.append(a))
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
  def no_cluster(**_):
    raise ValueError("coordinator_address should be defined.")

  monkeypatch.setattr(distributed, "_on_tpu_vm", lambda: True)
  monkeypatch.setattr(distributed.jax.distributed, "initialize", no_cluster)
  distributed.initialize()
