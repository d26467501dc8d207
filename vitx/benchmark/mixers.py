"""Every token mixer as a module, both implementations, side by side with dense softmax."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.analysis.implementations import describe_choices
from vitx.attention import MIXERS
from vitx.attention.contract import Properties
from vitx.benchmark.timing import (
  TimedProgram,
  Times,
  TooLargeError,
  check_masked,
  compile_step,
  interleave,
)
from vitx.config.errors import ConfigError
from vitx.config.registry import build, fields_of
from vitx.ops import TokenLayout, recording_implementations
from vitx.ops.implementation import Choice

BASELINE = "softmax"  # in its two implementations


@dataclasses.dataclass(frozen=True)
class Setting:
  """What all mixers are given.

  Attributes:
    batch: B.
    heads: H.
    head_dim: D; the width of the tokens is H D.
    dtype: of the computation; parameters are float32.
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
  """One mixer in one implementation at one number of tokens.

  Attributes:
    tokens: N.
    mixer: name.
    implementation: "masked", "kernelized", or "auto" for a mixer with one path.
    picked: whether "auto" picks it.
    times: `None` if it was skipped.
    temporary_bytes: of one step, as compiled.
    flops: of one step.
    note: why it was skipped.
  """

  tokens: int
  mixer: str
  implementation: str
  picked: bool
  times: Times | None = None
  temporary_bytes: int | None = None
  flops: int | None = None
  note: str = ""


def make_grid(tokens: int) -> TokenLayout:
  """Returns the most nearly square grid of so many tokens, no more rows than columns."""
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
  """Measures forward and backward of each mixer, by input and parameters, projections included.

  Args:
    mixers: names of `MIXERS`, or of the user's own as "module:Name"; a mapping has fields too.
    tokens: the N.
    setting: sizes and dtype.
    repeats: rounds over all programs of one N; the median counts.
    seconds: that one program may take in these rounds; beyond, it gets fewer.
    say: is told of progress.

  Returns:
    A row for every N, mixer and implementation, the two of dense softmax first for every N.

  Raises:
    ConfigError: unknown mixer or field.
  """
  specs = [fields_of(spec) for spec in mixers]
  specs = [{"name": BASELINE}] + [spec for spec in specs if spec != {"name": BASELINE}]
  builders = {label(spec): build(MIXERS, spec, "token_mixer") for spec in specs}
  rows: list[MixerCost] = []
  for n in tokens:
    rows += _at_length(builders, n, setting, repeats, seconds, say)
  return rows


def _at_length(builders, n, setting, repeats, seconds, say) -> list[MixerCost]:
  rows: list[MixerCost] = []
  programs: dict[str, TimedProgram] = {}
  for name, builder in builders.items():
    builder = partial(builder, num_heads=setting.heads, dtype=setting.dtype)
    choices = find_choices(builder(), n, setting)
    picked = "" if choices is None else describe_choices(choices)
    for implementation, module in _variants(builder):
      say(f"N={n}: compiling {name} {implementation}")
      row = MixerCost(n, name, implementation, picked == implementation)
      try:
        variables = draw_variables(module, n, setting)
        program = compile_mixer(module, variables, implementation, n, setting)
      except (TooLargeError, ConfigError) as error:
        say(f"N={n}: {name} {implementation} skipped: {error}")
        rows.append(dataclasses.replace(row, note=f"skipped: {error}"))
        continue
      programs[f"{name} {implementation}"] = program
      rows.append(
        dataclasses.replace(row, temporary_bytes=program.temporary_bytes, flops=program.flops)
      )
  say(f"N={n}: timing {len(programs)} programs")
  runs = {name: program.run for name, program in programs.items()}
  times = interleave(runs, repeats=repeats, seconds=seconds)
  named = [(row, times.get(f"{row.mixer} {row.implementation}")) for row in rows]
  return [dataclasses.replace(row, times=found) for row, found in named]


def find_choices(module: nn.Module, n: int, setting: Setting) -> list[Choice] | None:
  """Returns what a mixer's ops pick for N tokens, found by tracing; None where it does not fit."""
  x = jax.ShapeDtypeStruct((setting.batch, n, setting.width), setting.dtype)
  layout = make_grid(n)
  with recording_implementations() as found:
    try:
      jax.eval_shape(lambda x: module.init(jax.random.key(0), x, layout, train=False), x)
    except ConfigError:  # said when it is compiled
      return None
  return found


def label(spec: Mapping[str, Any]) -> str:
  """Returns a mixer's name in tables: with its fields, where it has any."""
  fields = ", ".join(f"{name}={value!r}" for name, value in spec.items() if name != "name")
  return f"{spec['name']}({fields})" if fields else spec["name"]


def _variants(builder: partial) -> Iterator[tuple[str, nn.Module]]:
  """Yields the mixer in each of its implementations."""
  properties = getattr(builder.func, "properties", Properties(implementations=()))
  for implementation in properties.implementations:
    yield implementation, builder(implementation=implementation)
  if not properties.implementations:
    yield "auto", builder()


def draw_variables(module: nn.Module, n: int, setting: Setting) -> dict[str, Any]:
  """Returns a mixer's variables for N tokens, the same for its implementations and for all B.

  Raises:
    ConfigError: the mixer does not fit so many tokens.
  """
  x, layout = jnp.zeros((1, n, setting.width), setting.dtype), make_grid(n)
  return dict(jax.jit(lambda key: module.init(key, x, layout, train=False))(jax.random.key(0)))


def compile_mixer(
  module: nn.Module, variables: Mapping[str, Any], implementation: str, n: int, setting: Setting
) -> TimedProgram:
  """Compiles forward and backward of a mixer, by input and parameters, for N tokens.

  Args:
    module: with its implementation.
    variables: of `draw_variables`.
    implementation: "masked" is not even tried where its matrices would not fit.
    n: N, laid out by `make_grid`.
    setting: sizes and dtype.

  Raises:
    TooLargeError: it needs more memory than is free.
    ConfigError: the mixer does not fit so many tokens.
  """
  if implementation == "masked":
    check_masked(setting.batch, setting.heads, n)
  layout = make_grid(n)
  shape = (setting.batch, n, setting.width)
  x = jax.random.normal(jax.random.key(2), shape, setting.dtype)
  state = {name: value for name, value in variables.items() if name != "params"}
  params = variables.get("params", {})
  return compile_step(
    lambda params, x: module.apply({"params": params, **state}, x, layout, train=False), params, x
  )
