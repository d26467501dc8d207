"""Sets up a run of several processes, one per host, from flags or the cluster's environment."""

import contextlib
import ctypes
import functools
import importlib.util
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax
from jax._src.lib import _jax  # for one function, see `_join`

from vitx.config.errors import ConfigError
from vitx.runtime.progress import announce

# Variables in which the launcher of a job step, SLURM's srun or Open MPI, counts the processes.
COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
NODES = "SLURM_STEP_NUM_NODES"  # in which SLURM counts the machines of a job step
# Variables that list the hosts of a pod on GKE, and variables that exist only in a pod of several
# slices or in an indexed job of Kubernetes.
HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
SEVERAL = ("MEGASCALE_COORDINATOR_ADDRESS", "JOB_COMPLETION_INDEX")

PATIENCE = 300  # seconds within which all processes must join
HEARTBEAT = 60  # seconds without a sign of life after which a process counts as gone
GONE = (
  "another process of this run has ended or cannot be reached: {}. Start all processes again with"
  " the same command; they continue from the last checkpoint."
)

_ending = threading.Lock()  # held by the thread that ends this process


def initialize(
  coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
  """Joins this process to the run's other processes; does nothing if there are none.

  Call it before any other use of JAX. Without arguments, the other processes are found from the
  environment: a SLURM or Open MPI job of several tasks, or a TPU pod of several workers.

  Args:
    coordinator: The address `host:port` of process 0.
    processes: The number of processes.
    process: The number of this process, from 0.
  """
  if (coordinator, processes, process) != (None, None, None):
    announce(
      f"waiting for {processes} processes at {coordinator}",
      lambda: _meet(coordinator, processes, process),
    )
  elif _in_cluster():
    _join()
  elif _on_tpu_vm():
    # Only the cloud's metadata server knows whether this host belongs to a pod; JAX asks it.
    with contextlib.suppress(ValueError):  # raised without such a server: this is the only host
      _join()


def _meet(coordinator: str | None, processes: int | None, process: int | None) -> None:
  """Connects this process to the run's other processes, or says that they did not meet."""
  try:
    _join(coordinator, processes, process)
  except RuntimeError as error:
    raise ConfigError(
      f"--coordinator={coordinator!r}: the {processes} processes of this run did not meet."
      f" Start all within {PATIENCE} s, with the same --coordinator, a free port on the host of"
      " process 0, and a different --process from 0 on."
    ) from error


def _join(*place: Any) -> None:
  """Calls `jax.distributed.initialize`, and prepares this process for the loss of another one."""
  # XLA's own callback for a loss would abort and print a page of its stack, and JAX has no argument
  # for another callback.
  make = _jax.get_distributed_runtime_client
  _jax.get_distributed_runtime_client = functools.partial(
    make, missed_heartbeat_callback=lambda status: end_alone(GONE.format(first_line(status)))
  )
  try:
    jax.config.update("jax_enable_preemption_service", False)  # the steps pass signals on
    initialize: Any = jax.distributed.initialize
    initialize(*place, initialization_timeout=PATIENCE, heartbeat_timeout_seconds=HEARTBEAT)
  finally:
    _jax.get_distributed_runtime_client = make
  has_one_task = os.environ.get(NODES, "0") == os.environ.get(COUNTS[0])
  if has_one_task and "JAX_LOCAL_DEVICE_IDS" not in os.environ:
    # JAX gives each task of SLURM one GPU, also the only task of a machine with several GPUs.
    jax.config.update("jax_cuda_visible_devices", "all")
    jax.config.update("jax_rocm_visible_devices", "all")
  if is_joined() and sys.platform == "linux":
    ctypes.CDLL(None).signal(signal.SIGABRT, _on_abort)  # a Python handler needs the main thread


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _on_abort(number: int) -> None:
  """Handles SIGABRT: prints that another process is lost, and ends this process."""
  end_alone(GONE.format("XLA's lines above say why"))


def is_joined() -> bool:
  """Returns whether this process is one of several that form a run."""
  return jax.distributed.is_initialized()


@contextlib.contextmanager
def end_on_failure() -> Iterator[None]:
  """Ends the process if a collective operation over the processes fails in a `with` block.

  Such a failure means that another process is gone. The code around the block would try to save a
  checkpoint together with it.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if is_joined() and "RESOURCE_EXHAUSTED" not in str(error):
      end(error)
    raise


def end(error: Exception | None) -> NoReturn:
  """Prints an error and ends this process.

  A failed collective operation is reported as the loss of another process.

  Args:
    error: The error; None if it has been printed already.
  """
  if isinstance(error, jax.errors.JaxRuntimeError):
    end_alone(GONE.format(first_line(error)))
  end_alone("" if error is None else "".join(traceback.format_exception(error)))


def end_alone(message: str) -> NoReturn:
  """Ends this process at once; JAX's normal exit would wait minutes for the other processes.

  The main thread and threads of XLA may notice one loss at the same time. The first thread prints
  its message, and the others wait here for the end of the process.

  Args:
    message: The text for stderr; "" for none.
  """
  _ending.acquire()
  sys.stdout.flush()
  if message:
    sys.stderr.write(f"{message.rstrip()}\n")  # one write, which no other thread divides
  sys.stderr.flush()
  os._exit(1)


def first_line(error: object) -> str:
  """Returns the first line of an error's message, without its full stop."""
  return str(error).strip().partition("\n")[0].rstrip(".")


def _in_cluster() -> bool:
  return (
    any(int(os.environ.get(name, "1")) > 1 for name in COUNTS)
    or any("," in os.environ.get(name, "") for name in HOSTS)
    or any(name in os.environ for name in SEVERAL)
  )


def _on_tpu_vm() -> bool:
  has_chip = any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))
  return has_chip and importlib.util.find_spec("libtpu") is not None


def is_writer() -> bool:
  """Returns whether this process writes files: process 0 does."""
  return jax.process_index() == 0
