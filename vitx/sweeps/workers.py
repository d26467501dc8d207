"""Trains a sweep in several processes, with the threads and devices with which the sweep began.

The last bits of a run depend on the number of threads and devices of the CPU. The first process of
a sweep therefore records them in `sweep.json`, and every later process takes these.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from vitx.checkpoints import workdir as wd
from vitx.sweeps.points import Point

CORES = "sweep.json"
# The variables of the environment that set the numbers of devices and of XLA's threads on a CPU.
# Without the first, the devices follow from the threads and the batches.
NUMBERS = ("JAX_NUM_CPU_DEVICES", "NPROC")
SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # JAX's share of the memory of a GPU
WORKER = "VITX_SWEEP_WORKER"  # in a process that only trains, the figure that the sweep shows
ONLY_ONE = "VITX_SWEEP_ONLY_ONE"  # in a worker that ends with its first point


def restore_cores(directory: str, count: int) -> None:
  """Sets the threads and devices with which a sweep began, unless the user has set others.

  This must happen before JAX is imported. If `count`, the number of processes that will train, is
  more than 1, this process takes memory of a GPU only when it needs it.
  """
  if count > 1:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  recorded = wd.read_json(directory, CORES)
  for name in recorded.keys() & NUMBERS:
    os.environ.setdefault(name, recorded[name])


def record_cores(directory: str, cores: str | None = None) -> None:
  """Records the threads and devices with which a sweep begins, unless it has begun already.

  Args:
    directory: The directory of the points' workdirs.
    cores: The number of cores of the machines that will train, if they are not like this one.
  """
  from vitx.runtime.parallel import count_cores

  if not wd.read_json(directory, CORES):
    chosen = {name: os.environ[name] for name in NUMBERS if name in os.environ}
    wd.write_json(directory, CORES, {"NPROC": cores or str(count_cores())} | chosen)


def make_environment(count: int, figure: str) -> dict[str, str]:
  """Returns the variables that make this process's command one of `count` workers of a sweep.

  JAX in each of several workers takes at most a share of 0.9 / `count` of a GPU's memory, unless
  the user has set another share.
  """
  share = {SHARE: os.environ.get(SHARE, f"{0.9 / count:.3g}")} if count > 1 else {}
  return {WORKER: figure, "PYTHONPATH": os.pathsep.join(sys.path), **share}


def train_in_workers(
  count: int, points: Sequence[Point], directory: str, show: Callable[..., None], figure: str
) -> tuple[list[Point], int]:
  """Trains points by other processes, which run this process's command, and passes a signal on.

  The processes print only errors; `log.txt` of a point has its other output.

  Args:
    count: The number of processes.
    points: The points of the sweep.
    directory: The directory of the points' workdirs.
    show: A function that shows a point and its state.
    figure: The metric on *test* of a run, such as "top1".

  Returns:
    The points that have not been shown yet; and 75 after a signal to this process, or else the
    highest exit status of a process, which is 0 if all points are done. A process that a signal
    killed has the signal's number.
  """
  from vitx.runtime.signals import EXIT_INTERRUPTED, POLL, StopRequest
  from vitx.sweeps.sweep import State, is_done

  null, rest = subprocess.DEVNULL, [*points]
  environment = os.environ | make_environment(count, figure)
  share = environment[SHARE]
  print(f"{count} processes train; on a GPU, each takes {share} of its memory", flush=True)
  command = [sys.executable, "-P", "-m", "vitx", *sys.argv[1:]]
  with StopRequest() as request:
    # In a session of its own, a process gets no signal from the terminal besides the one passed on.
    workers = [
      subprocess.Popen(command, env=environment, stdin=null, stdout=null, start_new_session=True)
      for _ in range(count)
    ]
    waiting = [*workers]
    while any(worker.poll() is None for worker in workers):
      done = [p for p in rest[: 2 * count] if is_done(wd.join(directory, p.name))]  # about in order
      for point in done:
        show(point, State.DONE)
        rest.remove(point)
      while request.received and waiting:
        waiting.pop().send_signal(request.received)
      time.sleep(0.0 if done else POLL)
  worst = max((worker.returncode for worker in workers), key=abs)
  if worst and not request.received:  # the system kills a process without a message
    print(f"a process ended with status {worst}", flush=True)
  return rest, EXIT_INTERRUPTED if request.received else abs(worst)
