"""Programs timed in turns, their best batches, and the memory of a process of its own."""

import dataclasses
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
from vitx.config.errors import ConfigError

MIN_SAMPLE = 0.02  # seconds; a shorter program runs several times in one sample
# Seconds. The first run after another program pays for the caches and pages that this one took,
# which in training nothing does; what takes longer hardly feels it.
WARM_BELOW = 0.5
GROWTH = 1.05  # of the best rate so far, that a batch twice as large must reach to be doubled again
STATUS = Path("/proc/self/status")


class TooLargeError(Exception):
  """A program that would not fit the device's free memory. The message says how much it needs."""


@dataclasses.dataclass(frozen=True)
class TimedProgram:
  """A compiled function with its arguments.

  Attributes:
    run: runs it to the end.
    temporary_bytes: beyond arguments and results, as compiled for the default backend; `None` where
      the compiler does not say.
    flops: of matrix products, convolutions and Fourier transforms.
  """

  run: Callable[[], None]
  temporary_bytes: int | None
  flops: int


@dataclasses.dataclass(frozen=True)
class Times:
  """Seconds of one program: the median of its samples, and how many those are."""

  seconds: float
  samples: int


def compile_step(
  function: Callable[..., Any], *args: Any, fixed: tuple[Any, ...] = ()
) -> TimedProgram:
  """Compiles a function and the gradients of a weighted sum of its output, by all `args`.

  Args:
    function: of the arguments, then the fixed ones; returns one array.
    *args: trees of floating-point arrays.
    fixed: trees of arrays, by which there is no gradient.

  Raises:
    TooLargeError: compiled, it needs more memory than is free.
  """
  shape = jax.eval_shape(function, *args, *fixed)
  weight = jax.random.normal(jax.random.key(1), shape.shape, shape.dtype)

  def step(weight, args, fixed):
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


def find_free_bytes() -> int:
  """Returns the bytes of memory that the default device has to spare."""
  stats = jax.local_devices()[0].memory_stats()
  if stats and "bytes_limit" in stats:
    return stats["bytes_limit"] - stats["bytes_in_use"]
  return psutil.virtual_memory().available


def check_memory(needed: int) -> None:
  """Raises TooLargeError if `needed` bytes leave less than a tenth of what is free."""
  free = find_free_bytes()
  if needed > 0.9 * free:
    raise TooLargeError(f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")


def check_masked(batch: int, heads: int, tokens: int) -> None:
  """Raises TooLargeError if the matrices of a masked path do not fit, before any is made.

  It holds three of (B, H, N, N) in float32, forward and backward.
  """
  check_memory(3 * 4 * batch * heads * tokens**2)


def interleave(
  runs: Mapping[str, Callable[[], None]],
  *,
  repeats: int,
  seconds: float,
  clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
  """Measures programs in turns, so that a slow minute of the machine meets all alike.

  Args:
    runs: each runs one program to its end; untimed first, then timed at least once. A short one
      runs untimed before each of its samples.
    repeats: rounds.
    seconds: of one program, after which it takes no part in further rounds.
    clock: gives seconds.
  """
  counts, short, spent = {}, {}, dict.fromkeys(runs, 0.0)
  for name, run in runs.items():
    took = _sample(run, 1, clock)  # the first run also loads the program: never a sample
    if took < MIN_SAMPLE:
      took = _sample(run, 1, clock)
    counts[name] = max(1, round(MIN_SAMPLE / max(took, 1e-9)))
    short[name] = took < WARM_BELOW
  samples: dict[str, list[float]] = {name: [] for name in runs}
  for _ in range(repeats):
    for name, run in runs.items():
      expected = counts[name] * statistics.median(samples[name]) if samples[name] else 0.0
      if spent[name] + expected > seconds:
        continue
      if short[name]:
        run()
      took = _sample(run, counts[name], clock)
      spent[name] += took
      samples[name].append(took / counts[name])
  return {name: Times(statistics.median(taken), len(taken)) for name, taken in samples.items()}


def _sample(run: Callable[[], None], count: int, clock: Callable[[], float]) -> float:
  start = clock()
  for _ in range(count):
    run()
  return clock() - start


@dataclasses.dataclass(frozen=True)
class BestRate:
  """The best rate of a program.

  Attributes:
    batch: at which it was reached.
    per_second: examples.
  """

  batch: int
  per_second: float


def find_rates(
  makers: Mapping[str, Callable[[int], Callable[[], None]]],
  *,
  say: Callable[[str], None],
  **effort: Any,
) -> dict[str, BestRate]:
  """Returns the best rate of each program; batches are 1, 2, 4, ... of all programs in turns.

  A program takes part until a batch does not fit the memory that is free, or is no `GROWTH` better
  than the best before it. One whose first batch does not fit has no rate.

  Args:
    makers: each returns what runs a batch of so many examples to its end, or raises TooLargeError.
    say: is told of progress.
    **effort: of `interleave`.
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
    found = {
      name: BestRate(batch, batch / times.seconds)
      for name, times in interleave(runs, **effort).items()
    }
    going = {name: makers[name] for name, rate in found.items() if _pays(rate, best.get(name))}
    for name, rate in found.items():
      best[name] = max(rate, best.get(name, rate), key=lambda rate: rate.per_second)
    batch *= 2
  return best


def _pays(rate: BestRate, best: BestRate | None) -> bool:
  return best is None or rate.per_second >= GROWTH * best.per_second


def peak_bytes(
  prepare: Callable[[], Any],
  make: Callable[[str], Callable[[], None]],
  name: str,
  steps: int = 3,
  read: Callable[[], int] | None = None,
) -> int:
  """Returns the peak of memory of some steps, in a process of its own, above its imports'.

  Args:
    prepare: imports what the step needs; importable itself, like the others.
    make: returns a step, given its name.
    name: of the step.
    steps: to run.
    read: returns the peak of its process so far; that of the resident memory by default.
  """
  spawn = multiprocessing.get_context("spawn")
  with ProcessPoolExecutor(1, mp_context=spawn) as pool:
    return pool.submit(_measure_peak, prepare, make, name, steps, read or _read_peak).result()


def _measure_peak(
  prepare: Callable, make: Callable, name: str, steps: int, read: Callable[[], int]
) -> int:
  prepare()
  before = read()
  step = make(name)
  for _ in range(steps):
    step()
  return read() - before


def _read_peak() -> int:
  """Returns the peak resident bytes of this process; `getrusage` counts its parent's too."""
  if not STATUS.exists():
    raise ConfigError(f"the peak of memory is read from {STATUS}, which Linux alone has")
  lines = STATUS.read_text().splitlines()
  return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


class Neighbors:
  """What other processes take of this machine's cores while a `with` block runs.

  Attributes:
    cores: on average, known at the end.
  """

  def __enter__(self) -> "Neighbors":
    self.cores = 0.0
    self._start, self._before = time.perf_counter(), self._others()
    return self

  def __exit__(self, *_) -> None:
    wall = time.perf_counter() - self._start
    self.cores = max(0.0, self._others() - self._before) / max(wall, 1e-9)

  def print(self) -> None:
    """Prints, behind the block, what was taken."""
    print(f"\nMeanwhile other processes used {self.cores:.1f} cores of this machine.", flush=True)

  @staticmethod
  def _others() -> float:
    """Returns the CPU seconds of all processes but this one."""
    machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    nice = getattr(machine, "nice", 0.0)  # where there is such a thing, it is not in `user`
    return machine.user + nice + machine.system - own.user - own.system
