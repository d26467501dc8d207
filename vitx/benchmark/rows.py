"""The cost of training a config: parameters, FLOPs, memory, time, and the largest batch that fits.

The costs are the columns of the table of `vitx plan`, which are those of Nauen et al. (Which
Transformer to Favor, WACV 2025). Memory and seconds of a training step grow linearly with its
examples. So measurements at two batch sizes give a line for the memory and one for the time, and
the line of the memory gives the largest batch. The settings of a row are those that
`settle.complete_config` returned.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from fractions import Fraction
from typing import Any

import jax

from vitx.analysis import cost
from vitx.analysis.counting import count_variables
from vitx.analysis.shapes import variable_shapes
from vitx.benchmark import timing
from vitx.config.describe import complete
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings
from vitx.config.settings import change
from vitx.ops.implementation import choosing_by, current_rule
from vitx.tasks import build_task
from vitx.tasks.settle import complete_config
from vitx.training import trial
from vitx.training.compilation import count_steps

USABLE = 0.9  # The share of the free memory that is used if no memory is given.
LARGEST_PROBE = 64  # The most examples of the larger measured size.
RUNS, SECONDS = 7, 5.0  # The rounds of timing, and the limit in seconds, of each size.
BATCH = 64  # The examples of the training step whose memory is split into parts.
INFERENCE = (1, 32, 128)  # The batch sizes at which the memory of inference is measured.

Costs = dict[str, Any]  # The values by column; unknown values are left out.


def fill(
  row: Costs,
  settings: RunSettings,
  computed: Mapping[str, Callable],
  *,
  memory: float | None,
  timed: bool,
  effort: Mapping[str, Any] | None,
  say: Callable[[str], None],
) -> None:
  """Fills the columns of a row of the table in place, one after another.

  After an error, the columns filled so far remain.

  Args:
    row: The row to fill.
    settings: The settings of the row.
    computed: The functions that compute the config file's own columns, by column name. Each takes
      the settings and the number of parameters that torchsummary counts.
    memory: The bytes that a device may use, or `None` to compile nothing.
    timed: Whether to run the training steps.
    effort: The arguments of `timing.interleave` for finding the best batch sizes, or `None` to skip
      this.
    say: A function that prints progress.
  """
  row |= count(settings)
  values = {key: value(settings, row["parameters_torchsummary"]) for key, value in computed.items()}
  row |= {key: value for key, value in values.items() if value is not None}
  if memory is None:
    return
  row |= compile_costs(settings)
  row |= measure_needs(settings, say, timed=timed)
  row |= {
    f"batch_{unit}": scale(row, unit, split_batch(settings)) for unit in ("mb", *["s"] * timed)
  }
  row["largest_batch"] = find_largest(row, memory, settings.grad_accum_steps) * jax.device_count()
  if effort:
    row |= measure_rates(settings, say=say, **effort)


def count(settings: RunSettings) -> Costs:
  """Returns a network's parameters, and the FLOPs of a forward pass of one example."""
  task = build_task(settings)
  variables = variable_shapes(task.model, task.input_spec)
  infer = functools.partial(task.model.apply, train=False)
  flops = functools.partial(cost.flops, infer, variables, task.input_spec)
  total, seen = count_variables(variables)
  return {
    "parameters": total,
    "parameters_torchsummary": seen,
    "gflops_products": flops() / 1e9,
    "gflops": flops(elementwise=True) / 1e9,
  }


def compile_costs(settings: RunSettings) -> Costs:
  """Returns the memory in MB of the compiled programs of training and of inference.

  The memory of a training step with `BATCH` examples is also split into parts. Inference has the
  batch sizes `INFERENCE`.
  """
  parts = trial.split_training_bytes(_set_batch(settings, BATCH))
  used: dict[str, int | None] = {f"train_{part}": size for part, size in parts.items()}
  used |= {"train": sum(parts.values()) or None}
  used |= {f"inference_{n}": trial.measure_inference_bytes(settings, n) for n in INFERENCE}
  return {f"{what}_mb": size / 1e6 for what, size in used.items() if size is not None}


def _set_batch(settings: RunSettings, batch: int) -> RunSettings:
  """Returns settings whose step has `batch` examples and no gradient accumulation."""
  return change(settings, {"batch_size": batch, "grad_accum_steps": 1})


def grow(unit: str, sizes: Sequence[int], values: Sequence[float]) -> Costs:
  """Returns two columns: the cost of a step without examples, and the cost that each example adds.

  They are the value at 0 and the slope of the line through two measured points. A negative number
  becomes 0. The unit in the columns' names is "mb" or "s".
  """
  (small, large), (low, high) = sizes, values
  slope = max(0.0, (high - low) / (large - small))
  return {f"step_{unit}": max(0.0, low - slope * small), f"example_{unit}": slope}


def scale(needs: Costs, unit: str, size: int) -> float:
  """Returns the memory ("mb") or time ("s") of a step with `size` examples on one device."""
  return needs[f"step_{unit}"] + needs[f"example_{unit}"] * size


def find_largest(needs: Costs, memory: float, step: int) -> int:
  """Returns the largest number of examples that fits a device, a multiple of `step`, or 0.

  Args:
    needs: The columns from `measure_needs`.
    memory: The bytes that the device may use.
    step: The number by which the result is divisible.
  """
  if scale(needs, "mb", step) > memory / 1e6:
    return 0
  if not needs["example_mb"]:
    raise ConfigError("the memory of a step does not grow with its batch; any batch_size fits.")
  return int((memory / 1e6 - needs["step_mb"]) / needs["example_mb"]) // step * step


def measure_needs(
  settings: RunSettings, say: Callable[[str], None], *, timed: bool, most: int = LARGEST_PROBE
) -> Costs:
  """Measures the memory, and optionally the time, of a training step at two batch sizes.

  A line through the two measurements gives the memory and the time at any batch size (`scale`).

  Args:
    settings: The settings; their `batch_size` bounds the sizes.
    say: A function that prints progress.
    timed: Whether the steps are also run and timed.
    most: The limit on the larger batch size, in examples for each device.

  Returns:
    The cost on one device. `step_mb` is the memory in MB of a step without examples, and
    `example_mb` is the memory that each example adds. If `timed`, `step_s` and `example_s` are the
    times in seconds.
  """
  unit = settings.grad_accum_steps
  sizes = probe_sizes(min(split_batch(settings), most), unit)
  say(f"compiling steps of {sizes[0]} and {sizes[1]} examples for each device")
  steps = settings.steps_per_dispatch or count_steps(trial.count_training_flops(settings))
  compiled = [_compile(settings, size, steps) for size in sizes]
  used: list[Any] = [cost.compiled_bytes(probe.program.compiled) for probe in compiled]
  smaller = sizes[1] // 4
  if timed and max(used) > find_memory() and probe_sizes(smaller, unit) < sizes:
    return measure_needs(settings, say, timed=True, most=smaller)
  needs = grow("mb", sizes, [size / 1e6 for size in used])
  return needs | (grow("s", sizes, _time(compiled, settings)) if timed else {})


def probe_sizes(batch: int, unit: int) -> tuple[int, int]:
  """Returns two batch sizes, multiples of `unit`; the larger is 4 times the smaller if possible."""
  large = max(2, batch // unit, 8 // unit)
  return max(1, large // 4) * unit, large * unit


def split_batch(settings: RunSettings) -> int:
  """Returns the number of a batch's examples that each device gets."""
  return max(1, settings.batch_size // jax.device_count())


def _compile(settings: RunSettings, size: int, steps: int) -> trial.Dispatch:
  """Compiles steps of `size` examples with the implementations that the whole batch picks."""
  with choosing_by(current_rule().scaled(Fraction(size, split_batch(settings)))):
    whole = {"batch_size": size * jax.device_count()}
    return trial.compile_dispatch(change(settings, whole), steps)


def _time(programs: Sequence[trial.Dispatch], settings: RunSettings) -> list[float]:
  """Returns the median seconds of a step of each program; the programs take turns."""
  state = jax.device_get(trial.begin(settings))
  runs = {str(number): probe.start(state) for number, probe in enumerate(programs)}
  times = timing.interleave(runs, repeats=RUNS, seconds=SECONDS)
  return [
    times[name].seconds / probe.program.steps for name, probe in zip(runs, programs, strict=True)
  ]


def find_memory(limit: float | None = None) -> float:
  """Returns the bytes that a device may use: `limit`, or the share `USABLE` of its free memory.

  CPU devices share one memory, which is divided among them.
  """
  memory = limit or USABLE * timing.find_free_bytes()
  return memory / jax.local_device_count() if jax.default_backend() == "cpu" else memory


def measure_remedies(
  settings: RunSettings, needs: Costs, memory: float
) -> Iterator[tuple[Costs, int]]:
  """Yields changes of settings that may make a batch fit, the cheapest in time first.

  Each item has the changed settings and the compiled memory of a step with them, in bytes. The
  changes are, in this order: gradient accumulation with the fewest micro-batches that fit according
  to `needs`; bfloat16; remat; bfloat16 and remat; and both of these with micro-batches of one
  example per device. Changes that the settings already have are left out. The iteration ends after
  the first item that changes several settings and fits.

  Args:
    settings: The settings, whose batch does not fit.
    needs: The columns from `measure_needs`.
    memory: The bytes that a device may use.
  """
  accum, batch = settings.grad_accum_steps, split_batch(settings)
  counts = [k for k in range(accum + 1, batch + 1) if batch % k == 0]
  model = complete(settings)["model"]
  half: Costs = {"model.dtype": "bfloat16"} if model.get("dtype") == "float32" else {}
  again: Costs = {"model.remat": True} if model.get("remat") is False else {}
  # A step of `needs` has `accum` micro-batches, so it needs as much as k micro-batches of its size.
  fits = [k for k in counts if scale(needs, "mb", accum * batch // k) <= memory / 1e6][:1]
  tries = [*({"grad_accum_steps": k} for k in fits), half, again, half | again]
  tries += [{"grad_accum_steps": k} | half | again for k in counts[-1:] if half or again]
  for number, changes in enumerate(tries):
    if changes and changes not in tries[:number]:
      changed = change(settings, {"batch_size": batch} | changes)
      used: Any = trial.measure_training_bytes(changed)
      yield changes, used
      if used <= memory and len(changes) > 1:
        return


def measure_peaks(
  configs: Mapping[str, Mapping[str, Any]], say: Callable[[str], None]
) -> dict[str, Costs]:
  """Measures the peak memory of training each row, each in a process of its own.

  Call this before the calling process takes the device's memory.

  Args:
    configs: The config of each row, by the row's name.
    say: A function that prints a line of progress.

  Returns:
    The column `train_peak_mb` of each row that fits in memory, by the row's name; {} if the device
    does not report its peak.
  """
  peaks: dict[str, Costs] = {}
  for name, config in configs.items():
    say(f"{name}: measuring the peak memory")
    try:
      peak = timing.peak_bytes(_read_peak, _make_step, config, steps=2, read=_read_peak)
      peaks[name] = {"train_peak_mb": peak / 1e6}
    except timing.TooLargeError as error:
      say(f"{name}: a step of {BATCH} examples {error}")
    except (ConfigError, BrokenExecutor, jax.errors.JaxRuntimeError) as error:
      say(f"{name}: no peak memory, {type(error).__name__}: {error}")
    except LookupError:
      break
  return peaks


def _read_peak() -> int:
  """Returns the device's peak bytes; a device that does not report them raises LookupError."""
  return (jax.local_devices()[0].memory_stats() or {})["peak_bytes_in_use"]


def _make_step(config: Mapping[str, Any]) -> Callable[[], None]:
  settings = complete_config(config)
  return _make(trial.prepare_training, lambda: trial.begin(settings), settings, BATCH)


def measure_rates(settings: RunSettings, **effort: Any) -> Costs:
  """Returns the examples per second of training and inference on one device.

  Each rate is that of the fastest batch size, which is returned too.

  Args:
    settings: The settings.
    **effort: Arguments of `timing.find_rates`.
  """

  def keep(start: Callable) -> Callable[[], Any]:
    """Returns a function that keeps an initial state on the host, where no step can donate it."""
    return functools.cache(lambda: jax.device_get(start(settings)))

  train, infer = keep(trial.begin), keep(trial.begin_inference)
  makers = {
    "train": functools.partial(_make, trial.prepare_training, train, settings),
    "inference": functools.partial(_make, trial.prepare_inference, infer, settings),
  }
  row: Costs = {}
  for kind, rate in timing.find_rates(makers, **effort).items():
    row |= {f"{kind}_batch": rate.batch, f"{kind}_per_s": rate.per_second}
  return row


def _make(
  prepare: Callable, start: Callable[[], Any], settings: RunSettings, batch: int
) -> Callable[[], None]:
  """Compiles a program of `trial` for `batch` examples, and returns a function that runs it."""
  program, needed = prepare(_set_batch(settings, batch), start)
  if needed is not None:
    timing.check_memory(needed)
  return program
