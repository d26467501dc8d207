"""Cases: several kernels on common queries, keys and values, with ratios that they have to reach.

The ratios to reach are those of forward and backward pass in float32 on two quiet CPU cores. Each
machine that was tried reached them, although the speed of matrix products relative to memory
differs by a factor of two among these machines.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax

from tests.benchmarks import console
from vitx.benchmark.timing import (
  TimedProgram,
  TooLargeError,
  check_masked,
  compile_step,
  interleave,
)

Attention = Callable[..., jax.Array]


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A way to compute attention.

  Attributes:
    attend: A function of q, k, v, the weights and the fixed arrays; it returns (B, N, H, D).
    weights: The shapes of parameters, which are drawn from a standard normal distribution and have
      gradients.
    fixed: A function that makes the arrays without gradients.
    layers: The number of layers in one run, by which its time is divided.
    runs: Whether the kernel is run; otherwise it is only compiled, to know its temporary memory.
  """

  attend: Attention
  weights: tuple[tuple[int, ...], ...] = ()
  fixed: Callable[[], tuple] = tuple
  layers: int = 1
  runs: bool = True


class Figure(NamedTuple):
  """A ratio of two kernels of a case: how many times less time or memory one needs.

  Attributes:
    kernel: The name of the kernel that should need less.
    other: The name of the kernel with which it is compared.
    quantity: The quantity, "time" or "memory" (of temporaries).
    at_least: The ratio to reach; `None` if the ratio is only measured.
  """

  kernel: str
  other: str
  quantity: str
  at_least: float | None


@dataclasses.dataclass(frozen=True)
class Case:
  """Kernels that get equal queries, keys and values.

  Attributes:
    name: The name in the table.
    shape: The shape of q, k and v, (B, N, H, D).
    kernels: The kernels by name.
    figures: The ratios to measure.
  """

  name: str
  shape: tuple[int, int, int, int]
  kernels: Mapping[str, Kernel]
  figures: tuple[Figure, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The measured values of one ratio.

  Attributes:
    case: The name of the case.
    figure: The ratio and its goal.
    ratios: The ratio in each run; one value for memory, which does not vary; () if it is unknown.
    note: The reason why the case was skipped, or the temporary memory of the kernel.
  """

  case: str
  figure: Figure
  ratios: tuple[float, ...] = ()
  note: str = ""


def measure(
  cases: Sequence[Case],
  *,
  runs: int = 3,
  repeats: int = 3,
  seconds: float = 20.0,
  say: Callable[[str], None] = lambda message: None,
) -> list[Outcome]:
  """Measures the ratios of cases in several runs; a run times all kernels of a case in turns.

  Args:
    cases: The cases.
    runs: The number of runs of each case.
    repeats: The number of rounds in a run; the median counts.
    seconds: The time in seconds that one kernel may take in a run; a slower one gets fewer rounds.
    say: A function called with messages on the progress.
  """
  return [outcome for case in cases for outcome in _outcomes(case, runs, repeats, seconds, say)]


def _outcomes(case: Case, runs: int, repeats: int, seconds: float, say) -> list[Outcome]:
  say(f"{case.name}: compiling")
  try:
    programs = _compile(case)
  except TooLargeError as error:
    say(f"{case.name}: skipped: {error}")
    return [Outcome(case.name, figure, note=f"skipped: {error}") for figure in case.figures]
  steps = {name: program.run for name, program in programs.items() if case.kernels[name].runs}
  times: list[dict[str, float]] = []
  for run in range(runs):
    say(f"{case.name}: run {run + 1} of {runs}")
    taken = interleave(steps, repeats=repeats, seconds=seconds)
    times.append({name: timed.seconds / case.kernels[name].layers for name, timed in taken.items()})
  return [Outcome(case.name, f, *_ratios(f, programs, times)) for f in case.figures]


def _ratios(
  figure: Figure, programs: Mapping[str, TimedProgram], times: list[dict[str, float]]
) -> tuple[tuple[float, ...], str]:
  """Returns the measured values of a ratio, and a note."""
  kernel, other = figure.kernel, figure.other
  if figure.quantity == "memory":
    mine, others = programs[kernel].temporary_bytes, programs[other].temporary_bytes
    return ((others / mine,), f"{mine / 1e6:.1f} MB") if mine and others else ((), "not known")
  ratios = tuple(run[other] / run[kernel] for run in times if kernel in run and other in run)
  return ratios, "" if ratios else "compiled, not run"


def _compile(case: Case) -> dict[str, TimedProgram]:
  batch, n, heads, _ = case.shape
  if "masked" in case.kernels and case.kernels["masked"].runs:
    check_masked(batch, heads, n)
  keys = iter(jax.random.split(jax.random.key(3), 16))
  q, k, v = (jax.random.normal(next(keys), case.shape) for _ in range(3))
  programs = {}
  for name, kernel in case.kernels.items():
    if not kernel.runs:
      programs[name] = TimedProgram(lambda: None, find_temporaries(kernel.attend, q, k, v), 0)
      continue
    weights = (jax.random.normal(next(keys), shape) for shape in kernel.weights)
    programs[name] = compile_step(kernel.attend, q, k, v, *weights, fixed=kernel.fixed())
  return programs


def find_temporaries(attend: Attention, *arrays: jax.Array) -> int | None:
  """Compiles forward and backward pass, and returns their temporary bytes; nothing is run."""

  def step(cotangent, *inputs):
    out, pull = jax.vjp(attend, *inputs)
    return out, pull(cotangent)

  analysis = jax.jit(step).lower(arrays[-1], *arrays).compile().memory_analysis()
  return None if analysis is None else analysis.temp_size_in_bytes


def format_named(outcomes: Sequence[Outcome]) -> str:
  """Returns the measured ratios as text, each with the ratio to reach."""
  lines = ["Named cases, on queries, keys and values alone; forward + backward, float32."]
  for case in dict.fromkeys(outcome.case for outcome in outcomes):
    lines.append(case)
    lines += [_outcome_line(outcome) for outcome in outcomes if outcome.case == case]
  return "\n".join(lines)


def _outcome_line(outcome: Outcome) -> str:
  figure = outcome.figure
  what = "faster than" if figure.quantity == "time" else "less temporaries than"
  text = f"  {figure.kernel}: {what} {figure.other}"
  if not outcome.ratios:
    return f"{text}  {outcome.note}"
  goals = {} if figure.at_least is None else {text: figure.at_least}
  line = console.format_ratios({text: outcome.ratios}, goals, most=False)
  return f"{line}  {outcome.note}".rstrip()
