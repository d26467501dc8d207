"""What batch fits, found from a training step at two batch sizes: `vitx plan`."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
from ml_collections import ConfigDict

from vitx.analysis import cost
from vitx.benchmark.timing import find_free_bytes, interleave
from vitx.cli.tables import lay_out
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config
from vitx.ops.implementation import choosing_by, current_rule
from vitx.training import phases
from vitx.training.compilation import count_steps
from vitx.training.trial import (
  Dispatch,
  begin,
  compile_dispatch,
  complete_config,
  count_training_flops,
  measure_training_bytes,
)

USABLE = 0.9  # of the memory that is free, where none is given
LARGEST_PROBE = 64  # examples of the larger size, where the batch has as many
RUNS, SECONDS = 7, 5.0  # of timing each size


@dataclasses.dataclass(frozen=True)
class Line:
  """A quantity that grows linearly with the examples of a step.

  Attributes:
    fixed: of a step without examples.
    each: that an example adds.
  """

  fixed: float
  each: float

  @classmethod
  def through(cls, sizes: Sequence[int], values: Sequence[float]) -> "Line":
    """Makes the line through two points; neither part is negative."""
    (small, large), (low, high) = sizes, values
    each = max(0.0, (high - low) / (large - small))
    return cls(max(0.0, low - each * small), each)

  def at(self, size: int) -> float:
    """Returns the value at so many examples."""
    return self.fixed + self.each * size


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a step needs, by the examples of one device.

  Attributes:
    sizes: the two that were compiled.
    bytes: of memory.
    seconds: of a step; None if it was not run.
  """

  sizes: tuple[int, int]
  bytes: Line
  seconds: Line | None

  def largest(self, memory: float, unit: int) -> int:
    """Returns the most examples that fit, a multiple of `unit`; 0 if none do."""
    if self.bytes.at(unit) > memory:
      return 0
    if not self.bytes.each:
      raise ConfigError("a step's memory does not grow with its batch: any batch_size fits")
    return int((memory - self.bytes.fixed) / self.bytes.each) // unit * unit


def make_plan(config: ConfigDict, *, timed: bool = True, most: int = LARGEST_PROBE) -> Plan:
  """Measures a completed config's training step at two sizes, smaller ones if these do not fit.

  Args:
    config: with what follows from its data; its `batch_size` bounds the sizes.
    timed: whether the steps are run too.
    most: examples of the larger size.

  Raises:
    ConfigError: the backend does not say what a program needs.
  """
  unit = config.grad_accum_steps
  sizes = probe_sizes(min(share(config), most), unit)
  steps = config.steps_per_dispatch or count_steps(count_training_flops(config))
  compiled = [_compile(config, size, steps) for size in sizes]
  used = [_known(cost.compiled_bytes(made.program.compiled)) for made in compiled]
  if not timed:
    return Plan(sizes, Line.through(sizes, used), None)
  smaller = sizes[1] // 4
  if max(used) > _of_each(USABLE * find_free_bytes()) and probe_sizes(smaller, unit) < sizes:
    return make_plan(config, most=smaller)
  return Plan(sizes, Line.through(sizes, used), Line.through(sizes, _time(compiled, config)))


def probe_sizes(batch: int, unit: int) -> tuple[int, int]:
  """Returns the two sizes: multiples of `unit`, the larger four times the smaller if it can be."""
  large = max(2, batch // unit, 8 // unit)
  return max(1, large // 4) * unit, large * unit


def share(config: ConfigDict) -> int:
  """Returns the examples of a batch that one device has."""
  return max(1, config.batch_size // jax.device_count())


def _compile(config: ConfigDict, size: int, steps: int) -> Dispatch:
  """Returns a compiled dispatch of `size` examples a step on each device.

  Its ops pick the implementations that they pick in a step of the config's own batch: only what is
  one program grows linearly.
  """
  with choosing_by(current_rule().scaled(Fraction(size, share(config)))):
    return compile_dispatch(_with(config, {"batch_size": size * jax.device_count()}), steps)


def _time(programs: Sequence[Dispatch], config: ConfigDict) -> list[float]:
  """Returns the median seconds of a step of each program; they take turns."""
  state = jax.device_get(begin(config))
  runs = {str(number): made.start(state) for number, made in enumerate(programs)}
  times = interleave(runs, repeats=RUNS, seconds=SECONDS)
  return [
    times[name].seconds / made.program.steps for name, made in zip(runs, programs, strict=True)
  ]


def _of_each(memory: float) -> float:
  """Returns one device's part: those of a CPU share its memory."""
  return memory / jax.local_device_count() if jax.default_backend() == "cpu" else memory


def _known(value: int | None) -> int:
  if value is None:
    raise ConfigError(f"{jax.default_backend()} does not say what memory a program needs")
  return value


def remedies(config: ConfigDict, plan: Plan, memory: float) -> Iterator[dict[str, Any]]:
  """Yields the settings to try where the batch does not fit, the cheapest in time first.

  Accumulation comes with the fewest micro-batches of which one fits.
  """
  accum, batch = config.grad_accum_steps, share(config)
  counts = [k for k in range(accum + 1, batch + 1) if batch % k == 0]
  fits = next((k for k in counts if plan.bytes.at(batch // k) <= memory), None)
  if fits is not None:
    yield {"grad_accum_steps": fits}
  half: dict[str, Any] = (
    {"model.dtype": "bfloat16"} if config.model.get("dtype") == "float32" else {}
  )
  again: dict[str, Any] = {"model.remat": True} if config.model.get("remat") is False else {}
  for settings in (half, again, half | again if half and again else {}):
    if settings:
      yield settings
  if counts and (half or again):
    yield {"grad_accum_steps": counts[-1]} | half | again


def _with(config: ConfigDict, settings: Mapping[str, Any]) -> ConfigDict:
  config = config.copy_and_resolve_references()
  with config.unlocked():
    for field, value in settings.items():
      *path, name = field.split(".")
      place = config
      for part in path:
        place = place[part]
      place[name] = value
  return config


def run(config: str, memory: float | None, time: bool) -> None:
  """Prints what fits, and what helps where the config's batch does not."""
  loaded = load_config(config)
  phases.use_cores([loaded])
  complete = complete_config(loaded)
  memory = _of_each(memory or USABLE * find_free_bytes())
  plan, batch = make_plan(complete, timed=time), share(complete)
  devices = jax.device_count()
  print(f"{devices} x {jax.devices()[0].device_kind} ({jax.default_backend()}), of each:")
  small, large = plan.sizes
  print(f"  memory {_gb(memory)}; steps of {small} and {large} examples were compiled")
  print(f"  needs {_gb(plan.bytes.fixed)} and {_gb(plan.bytes.each)} an example")
  if plan.seconds:
    each, fixed = plan.seconds.each, plan.seconds.fixed
    print(f"  takes {fixed:.4f} s a step and {each:.4f} s an example")
  most = plan.largest(memory, complete.grad_accum_steps) * devices
  needed = plan.bytes.at(batch)
  print(f"largest batch_size that fits: {most or 'none'}")
  print(f"batch_size={complete.batch_size} needs {_gb(needed)}{_step_time(plan, batch)}", end="")
  if needed <= memory:
    print(": it fits")
    return
  print(": it does not fit; with these settings it was compiled to")
  rows = [("setting", "needs", "")]
  for settings in remedies(complete, plan, memory):
    used = _known(measure_training_bytes(_with(complete, {"batch_size": batch} | settings)))
    name = ",".join(f"{field}={value}" for field, value in settings.items())
    rows.append((name, _gb(used), "fits" if used <= memory else ""))
    if used <= memory and len(settings) > 1:
      break
  print(lay_out(rows, right=(1,)))
  if not any(row[2] == "fits" for row in rows):
    print("None fits: take larger patches, fewer tokens or a mixer with linear memory")


def _step_time(plan: Plan, batch: int) -> str:
  return f", {plan.seconds.at(batch):.3f} s a step" if plan.seconds else ""


def _gb(value: float) -> str:
  return f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.2f} MB"
