"""Named cases, each with the figures that it is to reach.

The figures are of forward and backward in float32 on two quiet CPU cores, and were reached on each
of the machines that tried them: how fast products are beside memory differs by two among those.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax

from vitx.benchmark.report import format_ratio
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
  """One way to attend.

  Attributes:
    attend: q, k, v, the weights and the fixed arrays -> (B, N, H, D).
    weights: shapes of parameters, drawn from a standard normal; they have gradients.
    fixed: makes arrays without gradients.
    layers: in one run, by which its time is divided.
    runs: whether it is run; else it is compiled for its temporaries alone.
  """

  attend: Attention
  weights: tuple[tuple[int, ...], ...] = ()
  fixed: Callable[[], tuple] = tuple
  layers: int = 1
  runs: bool = True


class Figure(NamedTuple):
  """A kernel is to be so many times faster, or smaller in temporaries, than another.

  Attributes:
    kernel, other: names within the case.
    quantity: "time" or "memory".
    at_least: the ratio to reach; `None` where it is only measured.
  """

  kernel: str
  other: str
  quantity: str
  at_least: float | None


@dataclasses.dataclass(frozen=True)
class Case:
  """Kernels on the same queries, keys and values.

  Attributes:
    name: in the table.
    shape: (B, N, H, D).
    kernels: by name.
    figures: to reach.
  """

  name: str
  shape: tuple[int, int, int, int]
  kernels: Mapping[str, Kernel]
  figures: tuple[Figure, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What was found of one figure.

  Attributes:
    case: its name.
    figure: what was asked.
    found: the ratio in each run; one for memory, which does not vary. Empty: not known.
    note: why it was skipped, or the kernel's temporaries.
  """

  case: str
  figure: Figure
  found: tuple[float, ...] = ()
  note: str = ""

  @property
  def met(self) -> int:
    """The number of runs in which the figure was reached."""
    least = self.figure.at_least
    return sum(least is not None and ratio >= least for ratio in self.found)


def measure(
  cases: Sequence[Case],
  *,
  runs: int = 3,
  repeats: int = 3,
  seconds: float = 20.0,
  say: Callable[[str], None] = lambda message: None,
) -> list[Outcome]:
  """Measures every figure in several runs; a run times all kernels of a case in turns.

  Args:
    cases: to measure.
    runs: of each case.
    repeats: rounds in a run; the median counts.
    seconds: that one kernel may take in a run; beyond, it gets fewer rounds.
    say: is told of progress.
  """
  return [found for case in cases for found in _outcomes(case, runs, repeats, seconds, say)]


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
    times.append({name: found.seconds / case.kernels[name].layers for name, found in taken.items()})
  return [Outcome(case.name, f, *_ratios(f, programs, times)) for f in case.figures]


def _ratios(
  figure: Figure, programs: Mapping[str, TimedProgram], times: list[dict[str, float]]
) -> tuple[tuple[float, ...], str]:
  """Returns the ratios of a figure, and a note."""
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
  """Returns the temporary bytes of forward and backward, as compiled; nothing is run."""

  def step(cotangent, *given):
    out, pull = jax.vjp(attend, *given)
    return out, pull(cotangent)

  analysis = jax.jit(step).lower(arrays[-1], *arrays).compile().memory_analysis()
  return None if analysis is None else analysis.temp_size_in_bytes


def format_named(outcomes: Sequence[Outcome]) -> str:
  """Formats the named cases with what was asked and what was found."""
  lines = ["Named cases, on queries, keys and values alone; forward + backward, float32."]
  for case in dict.fromkeys(outcome.case for outcome in outcomes):
    lines.append(case)
    lines += [_outcome_line(outcome) for outcome in outcomes if outcome.case == case]
  return "\n".join(lines)


def _outcome_line(outcome: Outcome) -> str:
  figure = outcome.figure
  what = "faster than" if figure.quantity == "time" else "less temporaries than"
  text = f"  {figure.kernel}: {what} {figure.other}"
  found = "  ".join(format_ratio(ratio) for ratio in outcome.found)
  if found and figure.at_least is not None:
    found = f">= {figure.at_least:<5.3g} {found}  met in {outcome.met} of {len(outcome.found)}"
  return f"{text:<72} {found}  {outcome.note}".rstrip()
