"""The number and the address of each process: from flags, from a cluster, or a single process."""

import subprocess
import sys
import threading

import jax
import pytest

from tests import runs
from vitx.config.errors import ConfigError
from vitx.training import distributed


@pytest.fixture
def calls(monkeypatch):
  args = []
  monkeypatch.setattr(distributed.jax.distributed, "initialize", lambda *a, **_: args.append(a))
  for name in (*distributed.COUNTS, distributed.NODES, *distributed.HOSTS, *distributed.SEVERAL):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr(distributed, "_on_tpu_vm", lambda: False)
  return args


def test_flags_reach_jax(calls):
  distributed.initialize("host:1", 2, 1)
  assert calls == [("host:1", 2, 1)]


def test_processes_that_do_not_meet_end_in_a_line(calls, monkeypatch):
  def fail(*_, **__):
    raise RuntimeError("std::bad_cast")

  monkeypatch.setattr(distributed.jax.distributed, "initialize", fail)
  with pytest.raises(ConfigError, match=r"the 2 processes of .* did not meet\. .* within 300 s"):
    distributed.initialize("host:1", 2, 1)


def test_a_loss_that_two_threads_notice_is_printed_once(monkeypatch, capsys):
  ending, codes = threading.Lock(), []
  monkeypatch.setattr(distributed, "_ending", ending)
  monkeypatch.setattr(distributed.os, "_exit", codes.append)
  distributed.end_alone("the main thread lost it")
  other = threading.Thread(target=distributed.end_alone, args=("a thread of XLA lost it",))
  other.start()
  other.join(0.1)
  assert other.is_alive() and codes == [1]
  assert capsys.readouterr().err == "the main thread lost it\n"
  ending.release()
  other.join()


@pytest.mark.parametrize(
  ("name", "value", "several"),
  [
    ("UNRELATED", "4", False),
    ("SLURM_STEP_NUM_TASKS", "4", True),
    ("SLURM_STEP_NUM_TASKS", "1", False),
    ("OMPI_COMM_WORLD_SIZE", "2", True),
    ("TPU_WORKER_HOSTNAMES", "a,b", True),
    ("TPU_WORKER_HOSTNAMES", "localhost", False),
    ("JOB_COMPLETION_INDEX", "0", True),
    ("MEGASCALE_COORDINATOR_ADDRESS", "a", True),
  ],
)
def test_a_cluster_joins_several_processes(calls, monkeypatch, name, value, several):
  monkeypatch.setenv(name, value)
  distributed.initialize()
  assert bool(calls) == several


@pytest.mark.parametrize(
  ("variables", "visible"),
  [
    ({"SLURM_STEP_NUM_TASKS": "4", distributed.NODES: "4"}, "all"),
    ({"SLURM_STEP_NUM_TASKS": "4", distributed.NODES: "2"}, "0"),
    ({"OMPI_COMM_WORLD_SIZE": "4"}, "0"),
  ],
)
def test_the_only_process_of_a_machine_sees_all_its_gpus(calls, monkeypatch, variables, visible):
  join = lambda **_: jax.config.update("jax_cuda_visible_devices", "0")  # noqa: E731
  monkeypatch.setattr(distributed.jax.distributed, "initialize", join)
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  try:
    distributed.initialize()
    assert jax.config.values["jax_cuda_visible_devices"] == visible
  finally:
    jax.config.update("jax_cuda_visible_devices", "all")


def test_a_run_chooses_its_devices_before_jax_starts():
  code = """if True:
    from jax._src import xla_bridge
    from vitx.cli.main import main
    from vitx.training import phases

    class Result:
      finished = True

    phases.train = lambda *_, **__: print(xla_bridge.backends_are_initialized()) or Result
    main(["train", "--config", "digits", "--workdir", "nowhere"])
  """
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=runs.ROOT)
  assert done.stdout == "False\n", done.stderr


def test_a_tpu_machine_without_a_pod_is_alone(calls, monkeypatch):
  def no_cluster(**_):
    raise ValueError("coordinator_address should be defined.")

  monkeypatch.setattr(distributed, "_on_tpu_vm", lambda: True)
  monkeypatch.setattr(distributed.jax.distributed, "initialize", no_cluster)
  distributed.initialize()
