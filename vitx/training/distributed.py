"""Several processes: one per host, found from flags or from the cluster's environment."""

import os

import jax

from vitx.errors import ConfigError

# What JAX's own cluster detection reads: SLURM, Open MPI, GKE and TPU pods.
CLUSTER_VARIABLES = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
TPU_VARIABLES = ("TPU_WORKER_HOSTNAMES", "MEGASCALE_COORDINATOR_ADDRESS")


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
    ConfigError: only some of the three are given, or the process is out of range.
  """
  given = (coordinator, processes, process)
  if any(value is not None for value in given):
    if coordinator is None or processes is None or process is None:
      raise ConfigError(
        "--coordinator, --processes and --process belong together: give all three or none, for"
        " example --coordinator=host0:1234 --processes=2 --process=0"
      )
    if not 0 <= process < processes:
      raise ConfigError(f"--process={process} must lie in 0..{processes - 1}")
    jax.distributed.initialize(coordinator, processes, process)
  elif _in_cluster():
    jax.distributed.initialize()


def _in_cluster() -> bool:
  if any(int(os.environ.get(name, "1")) > 1 for name in CLUSTER_VARIABLES):
    return True
  return any("," in os.environ.get(name, "") for name in TPU_VARIABLES[:1]) or bool(
    os.environ.get(TPU_VARIABLES[1])
  )


def is_writer() -> bool:
  """Whether this process writes files: process 0 does."""
  return jax.process_index() == 0
