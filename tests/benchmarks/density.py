"""Attention of density models: the factorized patterns beside causal flash, and their figures.

Queries, keys and values alone, forward and backward, float32, at the size of the Sparse
Transformer's Enwik8 model (Child et al. 2019, Table 2). The figures hold for two quiet CPU cores.
Whole training steps and sampled tokens are those of `density_steps`.

python -m tests.benchmarks.density
python -m tests.benchmarks.density --parts attention --tokens 3072
"""

import dataclasses
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tests.benchmarks import console, density_steps, named
from tests.benchmarks.named import Attention, Figure, Outcome
from vitx.analysis import cost
from vitx.benchmark.timing import Program, TooLargeError, check_masked, compile_step, interleave
from vitx.ops import attention
from vitx.ops.kernels.softmax import kernelized_attention
from vitx.ops.patterns import Fixed, Pattern, Strided

TOKENS, HEADS, HEAD_DIM = 12_288, 2, 64
MASKED_UP_TO = 4096  # tokens; beyond, the masked path is compiled for its temporaries and never run
FLASH, MASKED = "causal flash", "masked"
PARTS = ("attention", "steps", "sampling")
LOCAL_LAYERS = 3  # after each strided one, as in OpenAI's release
LAYERS = f"strided, mean of 1:{LOCAL_LAYERS} layers"

# Memory is compared at the layer that needs most: `strided, column`.
FIGURES = (
  Figure(LAYERS, FLASH, "time", 6),
  Figure("strided, merged", FLASH, "time", 6),
  Figure("strided, column", FLASH, "memory", 1 / 1.1),
  Figure("strided, merged", FLASH, "memory", 1 / 1.1),
  Figure("strided, column", MASKED, "memory", 60),
  Figure("strided, merged", MASKED, "memory", 60),
  Figure("fixed", FLASH, "time", 2),
  Figure(FLASH, MASKED, "time", None),
)


@dataclasses.dataclass(frozen=True)
class Measured:
  """One kernel at one number of tokens.

  Attributes:
    name: of the kernel.
    seconds: the median of each run; empty where it was only compiled.
    temporary_bytes: as compiled; None where the compiler does not say.
    flops: of matrix products.
    note: why it was not run.
  """

  name: str
  seconds: tuple[float, ...] = ()
  temporary_bytes: float | None = None
  flops: float = 0
  note: str = ""


def kernels(stride: int, summary: int) -> dict[str, Attention]:
  """Returns the kernels by name.

  Args:
    stride: l, of the strided and of the fixed pattern.
    summary: c, of the fixed one; each head reads a sub-run of its own, as many as fit.
  """
  return {
    FLASH: lambda q, k, v: kernelized_attention(q, k, v, causal=True),
    "strided, local": _along(Strided(stride, "local", "code")),
    "strided, column": _along(Strided(stride, "column", "code")),
    "strided, merged": _along(Strided(stride, "merged", "code")),
    "fixed": _along(Fixed(stride, summary, distinct=max(1, stride // summary))),
    MASKED: lambda q, k, v: attention(q, k, v, causal=True, implementation="masked")[0],
  }


def _along(pattern: Pattern) -> Attention:
  return lambda q, k, v: attention(q, k, v, pattern, implementation="kernelized")[0]


def measure_attention(
  tokens: int = TOKENS,
  *,
  stride: int = 128,
  summary: int = 32,
  heads: int = HEADS,
  head_dim: int = HEAD_DIM,
  runs: int = 3,
  repeats: int = 3,
  seconds: float = 60.0,
  say: Callable[[str], None] = lambda message: None,
) -> list[Measured]:
  """Measures all kernels on the same arrays; a run times them in turns.

  Args:
    tokens: N.
    stride, summary: l and c of the patterns.
    heads, head_dim: H and D.
    runs: of all kernels; each gives a median.
    repeats: rounds in a run.
    seconds: that one kernel may take in a run; beyond, it gets fewer rounds.
    say: is told of progress.
  """
  shape = (1, tokens, heads, head_dim)
  arrays = [jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 3)]
  programs: dict[str, Program] = {}
  rows: dict[str, Measured] = {}
  for name, attend in kernels(stride, summary).items():
    say(f"N={tokens}: compiling {name}")
    rows[name] = _compile(name, attend, arrays, programs)
  times: list[Mapping[str, float]] = []
  for run in range(runs):
    say(f"N={tokens}: run {run + 1} of {runs}")
    steps = {name: program.run for name, program in programs.items()}
    found = interleave(steps, repeats=repeats, seconds=seconds)
    times.append({name: taken.seconds for name, taken in found.items()})
  rows = {
    name: dataclasses.replace(row, seconds=tuple(run[name] for run in times if name in run))
    for name, row in rows.items()
  }
  return [*rows.values(), _mean_of_layers(rows["strided, column"], rows["strided, local"])]


def _compile(name, attend: Attention, arrays, programs: dict[str, Program]) -> Measured:
  (batch, tokens, heads, _), note = arrays[0].shape, ""
  try:
    if name == MASKED:
      check_masked(batch, heads, tokens)
    if name != MASKED or tokens <= MASKED_UP_TO:
      program = programs[name] = compile_step(attend, *arrays)
      return Measured(name, (), program.temporary_bytes, program.flops)
    note = f"compiled, not run: more than {MASKED_UP_TO} tokens"
  except TooLargeError as error:
    note = f"compiled, not run: {error}"
  return Measured(name, (), *_cost(attend, arrays), note)


def _cost(attend: Attention, arrays) -> tuple[int | None, int]:
  """Returns temporary bytes and FLOPs of forward and backward; allocates nothing."""

  def step(cotangent, *given):
    out, pull = jax.vjp(attend, *given)
    return out, pull(cotangent)

  shapes = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (arrays[2], *arrays)]
  analysis = jax.jit(step).lower(*shapes).compile().memory_analysis()
  return None if analysis is None else analysis.temp_size_in_bytes, cost.flops(step, *shapes)


def _mean_of_layers(column: Measured, local: Measured) -> Measured:
  """Returns a layer's mean where each layer of columns is followed by local ones."""

  def mean(one: float, other: float) -> float:
    return (one + LOCAL_LAYERS * other) / (1 + LOCAL_LAYERS)

  known = column.temporary_bytes is not None and local.temporary_bytes is not None
  return Measured(
    LAYERS,
    tuple(map(mean, column.seconds, local.seconds)),
    mean(column.temporary_bytes or 0, local.temporary_bytes or 0) if known else None,
    mean(column.flops, local.flops),
  )


def judge(rows: Sequence[Measured], case: str) -> list[Outcome]:
  """Returns what was found of `FIGURES`; without anything found where a kernel was not run.

  Args:
    rows: of `measure_attention`.
    case: the outcomes' name.
  """
  by_name = {row.name: row for row in rows}
  found = []
  ratios: tuple[float, ...]
  for figure in FIGURES:
    mine, other = by_name[figure.kernel], by_name[figure.other]
    if figure.quantity == "memory":
      sizes = mine.temporary_bytes, other.temporary_bytes
      ratios = (sizes[1] / sizes[0],) if sizes[0] and sizes[1] else ()
    else:
      ratios = find_ratios(mine, other)
    found.append(Outcome(case, figure, ratios, "" if ratios else mine.note or other.note))
  return found


def find_ratios(mine: Measured, other: Measured) -> tuple[float, ...]:
  """Returns for each run how many times faster `mine` was; () where one was not run."""
  if not (mine.seconds and other.seconds):
    return ()
  return tuple(b / a for a, b in zip(mine.seconds, other.seconds, strict=True))


def format_measured(rows: Sequence[Measured], heading: str) -> str:
  """Formats rows beside causal flash: time over the runs (median, standard deviation), memory."""
  flash = next(row for row in rows if row.name == FLASH)
  lines = [
    heading,
    f"{'':<30}{'times faster':>14}{'sd':>7}{'MB':>10}{'times less':>12}{'GFLOPs':>9}",
  ]
  for row in rows:
    ratios = find_ratios(row, flash)
    time = f"{statistics.median(ratios):.2f}" if ratios else "-"
    spread = f"{statistics.stdev(ratios):.2f}" if len(ratios) > 1 else "-"
    size, less = "-", "-"
    if row.temporary_bytes and flash.temporary_bytes:
      size = f"{row.temporary_bytes / 1e6:.1f}"
      less = f"{flash.temporary_bytes / row.temporary_bytes:.2f}"
    line = f"{row.name:<30}{time:>14}{spread:>7}{size:>10}{less:>12}{row.flops / 1e9:>9.1f}"
    lines.append(f"{line}  {row.note}".rstrip())
  return "\n".join(lines)


def measure(
  parts: Sequence[str],
  tokens: Sequence[int],
  stride: int,
  summary: int,
  setups: Sequence[str],
  depth: int,
  effort: Mapping[str, Any],
) -> None:
  """Prints a table of each part: of `PARTS`."""
  if "attention" in parts:
    for n in tokens:
      rows = measure_attention(n, stride=stride, summary=summary, **effort)
      heading = (
        f"N = {n}, H = {HEADS}, D = {HEAD_DIM}, l = {stride}, c = {summary}, float32, forward +"
        f" backward, beside {FLASH}"
      )
      print(f"\n{format_measured(rows, heading)}", flush=True)
      if n == TOKENS:  # the figures are those of this size
        print(named.format_named(judge(rows, f"density, N={n}")), flush=True)
  if "steps" in parts:
    chosen = {name: density_steps.SETUPS[name] for name in setups}
    steps = density_steps.measure_steps(chosen, depth=depth, **effort)
    print(f"\n{density_steps.format_steps(steps, depth)}", flush=True)
  if "sampling" in parts:
    sampled = density_steps.measure_sampling(depth=depth, **effort)
    print(f"\n{density_steps.format_sampling(sampled, depth)}", flush=True)


if __name__ == "__main__":
  parser = console.make_parser(__doc__)
  add, setups = parser.add_argument, density_steps.SETUPS
  add("--parts", nargs="+", choices=PARTS, default=PARTS)
  add("--tokens", nargs="+", type=int, default=[3072, TOKENS], help="N of attention")
  add("--stride", type=int, default=128, help="l of the patterns of attention")
  add("--summary", type=int, default=32, help="c of the fixed one")
  add("--setups", nargs="+", choices=setups, default=list(setups), help="of models")
  add("--depth", type=int, default=4, help="layers of the models")
  sys.exit(console.start(measure, parser))
