"""What a row of a config costs: counted, compiled and timed, and what batch fits.

Memory and seconds of a training step grow linearly with its examples: two sizes tell both lines,
and so the largest batch. The metrics are those of Nauen et al. (Which Transformer to Favor, WACV
2025).
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from vitx.analysis import cost
from vitx.analysis.counting import count_variables
from vitx.analysis.shapes import variable_shapes
from vitx.benchmark import timing
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config
from vitx.ops.implementation import choosing_by, current_rule
from vitx.tasks import build_task
from vitx.training import trial
from vitx.training.compilation import count_steps

USABLE = 0.9  # of the memory that is free, where none is given
LARGEST_PROBE = 64  # examples of the larger size, where the batch has as many
RUNS, SECONDS = 7, 5.0  # of timing each size
BATCH = 64  # examples of the training step whose memory is told in its parts
INFERENCE = (1, 32, 128)  # examples, of which the memory of inference is told

Costs = dict[str, Any]  # values by column; of what is not known there is none


def fill(
  row: Costs,
  config: ConfigDict,
  *,
  computed: Mapping[str, Callable],
  memory: float | None,
  timed: bool,
) -> "StepNeeds | None":
  """Fills the columns of a row, one after the other: those before an error stay.

  Args:
    row: to fill.
    config: of the row, completed.
    computed: what its file computes, from the config and the parameters that torchsummary sees.
    memory: bytes that a device may use; None to compile nothing.
    timed: whether training steps are run too.

  Returns:
    What a training step needs; None where nothing is compiled.

  Raises:
    ConfigError: the network does not build, or the backend does not say what a program needs.
  """
  row |= count(config)
  values = {key: value(config, row["parameters_torchsummary"]) for key, value in computed.items()}
  row |= {key: value for key, value in values.items() if value is not None}
  if memory is None:
    return None
  row |= compile_costs(config)
  needs = measure_needs(config, timed=timed)
  for name, unit, growth in (("mb", 1e6, needs.bytes), ("s", 1.0, needs.seconds)):
    if growth:
      batch = growth.at(share(config))
      row |= {f"step_{name}": growth.fixed / unit, f"example_{name}": growth.each / unit}
      row[f"batch_{name}"] = batch / unit
  row["largest_batch"] = needs.largest(memory, config.grad_accum_steps) * jax.device_count()
  return needs


def count(config: ConfigDict) -> Costs:
  """Returns the parameters and operations of a completed config; nothing is compiled."""
  task = build_task(config)
  variables = variable_shapes(task.model, task.input_spec)
  flops = functools.partial(cost.flops, task.model.apply, variables, task.input_spec)
  total, seen = count_variables(variables)
  return {
    "parameters": total,
    "parameters_torchsummary": seen,
    "gflops_products": flops() / 1e9,
    "gflops": flops(elementwise=True) / 1e9,
  }


def compile_costs(config: ConfigDict) -> Costs:
  """Returns what memory a completed config's training and inference need, at fixed batches."""
  parts = trial.split_training_bytes(_at(config, BATCH))
  used: dict[str, int | None] = {f"train_{part}": size for part, size in parts.items()}
  used |= {"train": sum(parts.values()) or None}
  used |= {f"inference_{n}": trial.measure_inference_bytes(config, n) for n in INFERENCE}
  return {f"{what}_mb": size / 1e6 for what, size in used.items() if size is not None}


def _at(config: ConfigDict, batch: int) -> ConfigDict:
  """Returns the config with so many examples in a step, all at once."""
  return with_settings(config, {"batch_size": batch, "grad_accum_steps": 1})


def with_settings(config: ConfigDict, settings: Mapping[str, Any]) -> ConfigDict:
  """Returns a config with other values of some fields, by their paths."""
  config = config.copy_and_resolve_references()
  with config.unlocked():
    config.update_from_flattened_dict(settings)
  return config


class Growth(NamedTuple):
  """A quantity that grows linearly with the examples of a step.

  Attributes:
    fixed: of a step without examples.
    each: that an example adds.
  """

  fixed: float
  each: float

  def at(self, size: int) -> float:
    """Returns the value at so many examples."""
    return self.fixed + self.each * size


def grow(sizes: Sequence[int], values: Sequence[float]) -> Growth:
  """Returns the line through two points; neither part is negative."""
  (small, large), (low, high) = sizes, values
  each = max(0.0, (high - low) / (large - small))
  return Growth(max(0.0, low - each * small), each)


class StepNeeds(NamedTuple):
  """What a step needs, by the examples of one device.

  Attributes:
    sizes: the two that were compiled.
    bytes: of memory.
    seconds: of a step; None if it was not run.
  """

  sizes: tuple[int, int]
  bytes: Growth
  seconds: Growth | None

  def largest(self, memory: float, unit: int) -> int:
    """Returns the most examples that fit, a multiple of `unit`; 0 if none do."""
    if self.bytes.at(unit) > memory:
      return 0
    if not self.bytes.each:
      raise ConfigError("a step's memory does not grow with its batch: any batch_size fits")
    return int((memory - self.bytes.fixed) / self.bytes.each) // unit * unit


def measure_needs(
  config: ConfigDict, *, timed: bool = True, most: int = LARGEST_PROBE
) -> StepNeeds:
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
  steps = config.steps_per_dispatch or count_steps(trial.count_training_flops(config))
  compiled = [_compile(config, size, steps) for size in sizes]
  used = [require_known(cost.compiled_bytes(each.program.compiled)) for each in compiled]
  smaller = sizes[1] // 4
  if timed and max(used) > find_memory() and probe_sizes(smaller, unit) < sizes:
    return measure_needs(config, most=smaller)
  seconds = grow(sizes, _time(compiled, config)) if timed else None
  return StepNeeds(sizes, grow(sizes, used), seconds)


def probe_sizes(batch: int, unit: int) -> tuple[int, int]:
  """Returns the two sizes: multiples of `unit`, the larger four times the smaller if it can be."""
  large = max(2, batch // unit, 8 // unit)
  return max(1, large // 4) * unit, large * unit


def share(config: ConfigDict) -> int:
  """Returns the examples of a batch that one device has."""
  return max(1, config.batch_size // jax.device_count())


def _compile(config: ConfigDict, size: int, steps: int) -> trial.Dispatch:
  """Returns a compiled dispatch of `size` examples a step on each device.

  Its ops pick the implementations that they pick in a step of the config's own batch: only what is
  one program grows linearly.
  """
  with choosing_by(current_rule().scaled(Fraction(size, share(config)))):
    whole = {"batch_size": size * jax.device_count()}
    return trial.compile_dispatch(with_settings(config, whole), steps)


def _time(programs: Sequence[trial.Dispatch], config: ConfigDict) -> list[float]:
  """Returns the median seconds of a step of each program; they take turns."""
  state = jax.device_get(trial.begin(config))
  runs = {str(number): each.start(state) for number, each in enumerate(programs)}
  times = timing.interleave(runs, repeats=RUNS, seconds=SECONDS)
  return [
    times[name].seconds / each.program.steps for name, each in zip(runs, programs, strict=True)
  ]


def find_memory(given: float | None = None) -> float:
  """Returns what a device may use, of the bytes given or free; those of a CPU share its memory."""
  memory = given or USABLE * timing.find_free_bytes()
  return memory / jax.local_device_count() if jax.default_backend() == "cpu" else memory


def require_known(value: int | None) -> int:
  """Returns the bytes of a program. Raises ConfigError where the backend does not say them."""
  if value is None:
    raise ConfigError(f"{jax.default_backend()} does not say what memory a program needs")
  return value


def measure_remedies(
  config: ConfigDict, needs: StepNeeds, memory: float
) -> Iterator[tuple[Costs, int]]:
  """Yields settings that may help where the batch does not fit, the cheapest in time first.

  Beside them stand the bytes that a step needs, as compiled. Accumulation comes with the fewest
  micro-batches of which one fits, and in the end with the most.
  """
  accum, batch = config.grad_accum_steps, share(config)
  counts = [k for k in range(accum + 1, batch + 1) if batch % k == 0]
  half: Costs = {"model.dtype": "bfloat16"} if config.model.get("dtype") == "float32" else {}
  again: Costs = {"model.remat": True} if config.model.get("remat") is False else {}
  fits = [k for k in counts if needs.bytes.at(batch // k) <= memory][:1]
  tries = [*({"grad_accum_steps": k} for k in fits), half, again, half | again]
  tries += [{"grad_accum_steps": k} | half | again for k in counts[-1:] if half or again]
  for number, settings in enumerate(tries):
    if settings and settings not in tries[:number]:
      changed = with_settings(config, {"batch_size": batch} | settings)
      used = require_known(trial.measure_training_bytes(changed))
      yield settings, used
      if used <= memory and len(settings) > 1:
        return


def measure_peaks(texts: Mapping[str, str], say: Callable[[str], None]) -> dict[str, Costs]:
  """Returns the measured peak of training by row; nothing where the device does not tell.

  Each row is measured in a process of its own, before this one takes the device's memory.
  """
  found: dict[str, Costs] = {}
  for name, text in texts.items():
    say(f"{name}: peak of memory")
    try:
      peak = timing.peak_bytes(_read_peak, _make_step, text, steps=2, read=_read_peak)
      found[name] = {"train_peak_mb": peak / 1e6}
    except timing.TooLargeError as error:
      say(f"{name}: a step of {BATCH} {error}")
    except LookupError:
      break
  return found


def _read_peak() -> int:
  """Returns the most bytes that the device held. Raises LookupError if it does not tell."""
  return (jax.local_devices()[0].memory_stats() or {})["peak_bytes_in_use"]


def _make_step(text: str) -> Callable[[], None]:
  config = trial.complete_config(load_config(text))
  return _make(trial.prepare_training, lambda: trial.begin(config), config, BATCH)


def measure_rates(config: ConfigDict, **effort: Any) -> Costs:
  """Returns the examples a second of training and of inference at the best batch, on one device.

  Args:
    config: completed.
    **effort: of `timing.find_rates`.
  """

  def keep(start: Callable) -> Callable[[], Any]:
    """Computes a start once and keeps it on the host, where no step can take it away."""
    return functools.cache(lambda: jax.device_get(start(config)))

  programs = {
    "train": (trial.prepare_training, keep(trial.begin), config),
    "inference": (trial.prepare_inference, keep(trial.begin_inference), config),
  }
  makers = {kind: functools.partial(_make, *given) for kind, given in programs.items()}
  row: Costs = {}
  for kind, rate in timing.find_rates(makers, **effort).items():
    row |= {f"{kind}_batch": rate.batch, f"{kind}_per_s": rate.per_second}
  return row


def _make(
  prepare: Callable, start: Callable[[], Any], config: ConfigDict, batch: int
) -> Callable[[], None]:
  """Returns a program of so many examples. Raises TooLargeError where it does not fit."""
  program, needed = prepare(_at(config, batch), start)
  if needed is not None:
    timing.check_memory(needed)
  return program
