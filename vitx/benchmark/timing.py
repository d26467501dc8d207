"""Times programs in turns, searches for their best batch sizes, and reads peak memory."""

import dataclasses
import datetime
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import psutil

from vitx.analysis import cost
from vitx.ops.sparse.triton_attention import find_version

MIN_SAMPLE = 0.02  # Seconds; a shorter program runs several times in one sample.
# Seconds. The first run after another program refills caches and pages, which does not happen in
# training. So a program shorter than this also runs untimed before each sample.
WARM_BELOW = 0.5
GROWTH = 1.05  # The batch is doubled again if it reaches this multiple of the best rate so far.


class TooLargeError(Exception):
  """The error for a program that exceeds the device's free memory; the message has its size."""


@dataclasses.dataclass(frozen=True)
class TimedProgram:
  """A compiled function with its arguments, which `run` runs to its end.

  Attributes:
    temporary_bytes: The memory beyond arguments and results, as compiled for the default backend,
      or `None` if the compiler does not report it.
    flops: The operations of matrix products, convolutions and Fourier transforms.
  """

  run: Callable[[], None]
  temporary_bytes: int | None
  flops: int


@dataclasses.dataclass(frozen=True)
class Times:
  """The time of a program: the median of its samples in seconds, and their number."""

  seconds: float
  samples: int


def compile_step(
  function: Callable[..., Any], *args: Any, fixed: tuple[Any, ...] = (), gradients: bool = True
) -> TimedProgram:
  """Compiles a function together with its gradients, for timing.

  The gradients are of a weighted sum of the output, with respect to all `args`.

  Args:
    function: A function of `args`, followed by `fixed`, that returns one array.
    *args: Trees of floating-point arrays.
    fixed: Trees of arrays without gradients.
    gradients: Whether the gradients are computed.

  Raises:
    TooLargeError: The compiled program needs more memory than is free.
  """
  shape = jax.eval_shape(function, *args, *fixed)
  weight = jax.random.normal(jax.random.key(1), shape.shape, shape.dtype)

  def step(weight, args, fixed):
    if not gradients:
      return function(*args, *fixed)
    out, pull = jax.vjp(lambda *args: function(*args, *fixed), *args)
    return out, pull(weight)

  compiled = jax.jit(step).lower(weight, args, fixed).compile()
  analysis = compiled.memory_analysis()
  temporary = None if analysis is None else analysis.temp_size_in_bytes
  if temporary is not None:
    check_memory(temporary)

  def run() -> None:
    jax.block_until_ready(compiled(weight, args, fixed))

  return TimedProgram(run, temporary, cost.flops(step, weight, args, fixed))


def describe_device(*packages: str) -> dict[str, Any]:
  """Returns today's date, the kind of device and the versions of installed packages, as JSON."""
  versions = {name: version for name in packages if (version := find_version(name))}
  date = datetime.datetime.now(datetime.UTC).date().isoformat()
  return {"date": date, "device_kind": jax.devices()[0].device_kind, "versions": versions}


def find_free_bytes() -> int:
  """Returns the free memory of the default device in bytes."""
  stats = jax.local_devices()[0].memory_stats()
  if stats and "bytes_limit" in stats:
    return stats["bytes_limit"] - stats["bytes_in_use"]
  return psutil.virtual_memory().available


def check_memory(needed: int) -> None:
  """Raises TooLargeError if a program would leave less than a tenth of the free memory."""
  free = find_free_bytes()
  if needed > 0.9 * free:
    raise TooLargeError(f"needs {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB are free")


def check_masked(batch: int, heads: int, tokens: int) -> None:
  """Raises TooLargeError if a masked implementation's three float32 (B, H, N, N) do not fit."""
  check_memory(3 * 4 * batch * heads * tokens**2)


def interleave(
  runs: Mapping[str, Callable[[], None]],
  *,
  repeats: int,
  seconds: float,
  clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
  """Times programs in turns, so that a slow minute of the machine affects all of them equally.

  Args:
    runs: The functions to time, each of which runs a program to its end. Each runs untimed first,
      then timed at least once. A short program also runs untimed before each of its samples.
    repeats: The number of rounds.
    seconds: The limit in seconds on the timed runs of each program. A program takes no part in a
      round that would exceed it.
    clock: A function that returns the time in seconds.
  """
  counts, short, spent = {}, {}, dict.fromkeys(runs, 0.0)
  for name, run in runs.items():
    took = _sample(run, 1, clock)  # The first run also loads the program, so it is no sample.
    if took < MIN_SAMPLE:
      took = _sample(run, 1, clock)
    counts[name] = max(1, round(MIN_SAMPLE / max(took, 1e-9)))
    short[name] = took < WARM_BELOW
  samples: dict[str, list[float]] = {name: [] for name in runs}
  for _ in range(repeats):
    for name, run in runs.items():
      times = samples[name]
      if times and spent[name] + counts[name] * statistics.median(times) > seconds:
        continue
      if short[name]:
        run()
      took = _sample(run, counts[name], clock)
      spent[name] += took
      samples[name].append(took / counts[name])
  return {name: Times(statistics.median(times), len(times)) for name, times in samples.items()}


def _sample(run: Callable[[], None], count: int, clock: Callable[[], float]) -> float:
  start = clock()
  for _ in range(count):
    run()
  return clock() - start


@dataclasses.dataclass(frozen=True)
class BestRate:
  """The batch size at which a program is fastest, and its examples per second."""

  batch: int
  per_second: float


def find_rates(
  makers: Mapping[str, Callable[[int], Callable[[], None]]],
  *,
  say: Callable[[str], None],
  **effort: Any,
) -> dict[str, BestRate]:
  """Finds the batch size with the best rate of each program, among 1, 2, 4, ....

  The programs take turns. A program drops out if a batch does not fit the free memory, or if its
  rate is less than `GROWTH` times its best rate so far. A program whose first batch does not fit
  has no rate.

  Args:
    makers: A function for each program, by name. Given a batch size, it returns a function that
      runs one batch to its end, or raises TooLargeError.
    say: A function called with messages on the progress.
    **effort: Arguments of `interleave`.
  """
  best: dict[str, BestRate] = {}
  going, batch = dict(makers), 1
  while going:
    say(f"batch {batch}: {', '.join(going)}")
    runs = {}
    for name, make in going.items():
      try:
        runs[name] = make(batch)
      except TooLargeError as error:
        say(f"{name}: a batch of {batch} {error}")
    rates = {
      name: BestRate(batch, batch / times.seconds)
      for name, times in interleave(runs, **effort).items()
    }
    going = {}
    for name, rate in rates.items():
      before = best.get(name, BestRate(0, 0.0))
      if rate.per_second >= GROWTH * before.per_second:
        going[name] = makers[name]
      best[name] = max(before, rate, key=lambda rate: rate.per_second)
    batch *= 2
  return best


def peak_bytes(
  prepare: Callable[[], Any],
  make: Callable[[Any], Callable[[], None]],
  subject: Any,
  steps: int = 3,
  read: Callable[[], int] | None = None,
) -> int:
  """Measures how much the peak memory of a separate process grows while it runs some steps.

  The memory that imports take is not counted.

  Args:
    prepare: A function that imports all that the step needs. This function, `make` and `read` must
      be importable.
    make: A function that returns a step of `subject`.
    subject: The name or the config of the step, which must be picklable.
    steps: The number of steps to run.
    read: A function that returns the peak bytes of its process so far; by default, of resident
      memory.
  """
  spawn = multiprocessing.get_context("spawn")
  with ProcessPoolExecutor(1, mp_context=spawn) as pool:
    return pool.submit(_measure_peak, prepare, make, subject, steps, read or _read_peak).result()


def _measure_peak(
  prepare: Callable, make: Callable, subject: Any, steps: int, read: Callable[[], int]
) -> int:
  prepare()
  before = read()
  step = make(subject)
  for _ in range(steps):
    step()
  return read() - before


def _read_peak() -> int:
  """Returns this process's peak resident bytes; `getrusage` would include the parent process."""
  lines = Path("/proc/self/status").read_text().splitlines()  # Linux alone has this file.
  return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


class Neighbors:
  """Measures how many cores other processes use, `cores`, while a `with` block runs."""

  def __enter__(self) -> "Neighbors":
    self.cores = 0.0
    self._start, self._before = time.perf_counter(), self._others()
    return self

  def __exit__(self, *_) -> None:
    wall = time.perf_counter() - self._start
    self.cores = max(0.0, self._others() - self._before) / max(wall, 1e-9)

  def print(self) -> None:
    """Prints the use of the cores; call it after the block."""
    print(f"\nMeanwhile other processes used {self.cores:.1f} cores of this machine.", flush=True)

  @staticmethod
  def _others() -> float:
    """Returns the CPU seconds of all processes except this one."""
    machine, process = psutil.cpu_times(), psutil.Process().cpu_times()
    nice = getattr(machine, "nice", 0.0)  # If this field exists, `user` does not include its time.
    return machine.user + nice + machine.system - process.user - process.system
