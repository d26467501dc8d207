"""Compares the times of token mixers, masked and kernelized, with those of dense softmax."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.analysis.implementations import describe_choices
from vitx.attention import MIXERS
from vitx.attention.base import Properties
from vitx.benchmark import timing
from vitx.config.errors import ConfigError
from vitx.config.registry import build, fields_of
from vitx.ops import TokenLayout, recording_implementations
from vitx.ops.implementation import Choice

BASELINE = "softmax"  # measured in both of its implementations


@dataclasses.dataclass(frozen=True)
class Setting:
  """The sizes and the dtype that all mixers share.

  Attributes:
    batch: The batch size, B.
    heads: The number of heads, H.
    head_dim: The width of a head, D; the width of a token is H D.
    dtype: The dtype of the computation; parameters are float32.
  """

  batch: int = 1
  heads: int = 4
  head_dim: int = 64
  dtype: str = "float32"

  @property
  def width(self) -> int:
    return self.heads * self.head_dim


@dataclasses.dataclass(frozen=True)
class MixerCost:
  """The cost of one mixer in one implementation at one number of tokens: a row of the results.

  Attributes:
    tokens: The number of tokens, N.
    mixer: The name of the mixer.
    implementation: "masked", "kernelized", or "auto" for a mixer with one path.
    picked: Whether "auto" would pick this implementation.
    times: The measured times, or `None` if the program was skipped.
    temporary_bytes: The temporary memory of one compiled step, in bytes.
    flops: The number of floating-point operations of one step.
    note: The reason why the program was skipped.
  """

  tokens: int
  mixer: str
  implementation: str
  picked: bool
  times: timing.Times | None = None
  temporary_bytes: int | None = None
  flops: int | None = None
  note: str = ""


def make_grid(tokens: int) -> TokenLayout:
  """Returns the layout of tokens on the grid that is nearest to a square, with rows <= columns."""
  rows = next(d for d in range(math.isqrt(tokens), 0, -1) if tokens % d == 0)
  return TokenLayout((rows, tokens // rows))


def measure(
  mixers: Sequence[str | Mapping[str, Any]],
  tokens: Sequence[int],
  setting: Setting,
  *,
  repeats: int = 3,
  seconds: float = 10.0,
  say: Callable[[str], None] = lambda message: None,
) -> list[MixerCost]:
  """Measures the forward and backward pass of each mixer, including its projections.

  Args:
    mixers: The mixers: names in `MIXERS`, "module:Name" for your own, or mappings with `name` and
      fields.
    tokens: The numbers of tokens, N.
    setting: The sizes and the dtype.
    repeats: The number of rounds over all programs of one N; a time is the median over the rounds.
    seconds: The time in seconds that one program may take in all rounds; a slower one gets fewer
      rounds.
    say: A function called with messages on the progress.

  Returns:
    A row for every N, mixer and implementation. Of the rows of each N, the first two are those of
    dense softmax, masked and kernelized.
  """
  specs = [fields_of(spec) for spec in mixers]
  specs = [{"name": BASELINE}] + [spec for spec in specs if spec != {"name": BASELINE}]
  builders = {label(spec): build(MIXERS, spec, "token_mixer") for spec in specs}
  rows: list[MixerCost] = []
  for n in tokens:
    rows += _measure_length(builders, n, setting, repeats, seconds, say)
  return rows


def _measure_length(builders, n, setting, repeats, seconds, say) -> list[MixerCost]:
  rows: list[MixerCost] = []
  programs: dict[str, timing.TimedProgram] = {}
  for name, builder in builders.items():
    builder = partial(builder, num_heads=setting.heads, dtype=setting.dtype)
    choices = find_choices(builder(), n, setting)
    picked = "" if choices is None else describe_choices(choices)
    ways = getattr(builder.func, "properties", Properties(implementations=())).implementations
    for implementation in ways or ("auto",):
      module = builder(implementation=implementation) if ways else builder()
      say(f"N={n}: compiling {name} {implementation}")
      row = MixerCost(n, name, implementation, picked == implementation)
      try:
        variables = draw_variables(module, n, setting)
        program = compile_mixer(module, variables, implementation, n, setting)
      except (timing.TooLargeError, ConfigError) as error:
        say(f"N={n}: {name} {implementation} skipped: {error}")
        rows.append(dataclasses.replace(row, note=f"skipped: {error}"))
        continue
      programs[f"{name} {implementation}"] = program
      rows.append(
        dataclasses.replace(row, temporary_bytes=program.temporary_bytes, flops=program.flops)
      )
  say(f"N={n}: timing {len(programs)} programs")
  runs = {name: program.run for name, program in programs.items()}
  times = timing.interleave(runs, repeats=repeats, seconds=seconds)
  timed = [(row, times.get(f"{row.mixer} {row.implementation}")) for row in rows]
  return [dataclasses.replace(row, times=duration) for row, duration in timed]


def find_choices(module: nn.Module, n: int, setting: Setting) -> list[Choice] | None:
  """Returns the implementations that "auto" picks for a mixer's operations at N tokens.

  `None` means that the mixer does not fit N tokens.
  """
  x = jax.ShapeDtypeStruct((setting.batch, n, setting.width), setting.dtype)
  with recording_implementations() as choices:
    try:
      jax.eval_shape(lambda x: module.init(jax.random.key(0), x, make_grid(n), train=False), x)
    except ConfigError:  # Compilation will report the error.
      return None
  return choices


def label(spec: Mapping[str, Any]) -> str:
  """Returns a mixer's name for tables, with its fields if it has any."""
  fields = ", ".join(f"{name}={value!r}" for name, value in spec.items() if name != "name")
  return f"{spec['name']}({fields})" if fields else spec["name"]


def draw_variables(module: nn.Module, n: int, setting: Setting) -> dict[str, Any]:
  """Returns random variables of a mixer for N tokens, which suit every implementation and batch."""
  x, layout = jnp.zeros((1, n, setting.width), setting.dtype), make_grid(n)
  return dict(jax.jit(lambda key: module.init(key, x, layout, train=False))(jax.random.key(0)))


def compile_mixer(
  module: nn.Module, variables: Mapping[str, Any], implementation: str, n: int, setting: Setting
) -> timing.TimedProgram:
  """Compiles a mixer's forward and backward pass for N tokens.

  The backward pass computes the gradients of the parameters and of the input.

  Args:
    module: The mixer in one implementation.
    variables: The variables from `draw_variables`.
    implementation: The name of the implementation. Before "masked" is compiled, a check refuses
      (N, N) matrices that are larger than the free memory.
    n: The number of tokens, N, which `make_grid` arranges.
    setting: The sizes and the dtype.

  Raises:
    TooLargeError: The program needs more memory than is free.
    ConfigError: The mixer does not fit N tokens.
  """
  if implementation == "masked":
    timing.check_masked(setting.batch, setting.heads, n)
  layout = make_grid(n)
  x = jax.random.normal(jax.random.key(2), (setting.batch, n, setting.width), setting.dtype)
  state = {name: value for name, value in variables.items() if name != "params"}
  params = variables.get("params", {})
  return timing.compile_step(
    lambda params, x: module.apply({"params": params, **state}, x, layout, train=False), params, x
  )
