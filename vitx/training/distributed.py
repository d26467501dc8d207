"""Several processes: one per host, found from flags or from the cluster's environment."""

import contextlib
import importlib.util
import os
from pathlib import Path

import jax

from vitx.errors import ConfigError
from vitx.training import rendezvous

# The number of processes as the launcher of a job step gives it: SLURM's srun, Open MPI.
COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
# Set in a pod of several hosts or slices on GKE, and in an indexed job of Kubernetes.
HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
SEVERAL = ("MEGASCALE_COORDINATOR_ADDRESS", "JOB_COMPLETION_INDEX")


def initialize(
  coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
  """Joins this process to the others; does nothing where there are none.

  Call it before any other use of JAX. Without arguments the environment decides: a SLURM or Open
  MPI job of several tasks, or a TPU pod of several workers.

  Args:
    coordinator: `host:port` of process 0.
    processes: how many there are.
    process: which one this is, from 0.

  Raises:
    ConfigError: only some of the three are given, the process is out of range, or the processes
      do not meet.
  """
  given = (coordinator, processes, process)
  if any(value is not None for value in given):
    if coordinator is None or processes is None or process is None:
      raise ConfigError(
        "--coordinator, --processes and --process belong together: give all three or none, for"
        " example --coordinator=host0:1234 --processes=2 --process=0"
      )
    if processes < 1:
      raise ConfigError(f"--processes={processes} must be at least 1")
    if not 0 <= process < processes:
      raise ConfigError(f"--process={process} must lie in 0..{processes - 1}")
    rendezvous.meet(coordinator, processes, process)
    jax.distributed.initialize(coordinator, processes, process)
  elif _in_cluster():
    jax.distributed.initialize()
  elif _on_tpu_vm():
    # Only the cloud's metadata server tells whether this host is one of a pod; JAX asks it.
    with contextlib.suppress(ValueError):  # raised where there is no such server: one host
      jax.distributed.initialize()


def _in_cluster() -> bool:
  return (
    any(_read_count(name) > 1 for name in COUNTS)
    or any("," in os.environ.get(name, "") for name in HOSTS)
    or any(name in os.environ for name in SEVERAL)
  )


def _read_count(name: str) -> int:
  value = os.environ.get(name, "1")
  if not value.isdecimal():
    raise ConfigError(
      f"{name}={value!r} in the environment is no number of processes; unset it, or set what the"
      " launcher has"
    )
  return int(value)


def _on_tpu_vm() -> bool:
  has_chip = any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))
  return has_chip and importlib.util.find_spec("libtpu") is not None


def is_writer() -> bool:
  """Returns whether this process writes files: process 0 does."""
  return jax.process_index() == 0
