"""Prints the header of a run and compiles its training steps.

A dispatch is one call of a compiled program, which makes several training steps on the devices.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from clu import parameter_overview

from vitx.analysis import cost
from vitx.checkpoints import tree
from vitx.config.fields import RunSettings
from vitx.ops.implementation import Choice
from vitx.ops.sparse.triton_attention import FAMILIES, find_obstacle
from vitx.runtime import parallel
from vitx.runtime.evaluation import evaluation_shapes
from vitx.runtime.progress import SPENT, Progress, announce
from vitx.training.experiment import Experiment, batch_shapes
from vitx.training.step import Rates, Step

# The most FLOPs of a dispatch, unless the config sets `steps_per_dispatch`. A CPU takes a second or
# two for so many, so that a run soon reacts to a signal.
FLOPS_PER_DISPATCH = 2**37
MOST_STEPS = 16
FEW_STEPS = 100  # a network with random weights learns little in fewer steps
# XLA's default schedule keeps more operations of a step ready to run in parallel, and needs a third
# more memory for their operands. A device that has one core gains nothing from this schedule.
CPU_OPTIONS = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


@dataclasses.dataclass(frozen=True)
class StepProgram:
  """The compiled program that makes several training steps on all devices.

  Attributes:
    compiled: The compiled `Step.train_several`.
    rates: The run's seed and learning rate, replicated.
    steps: The largest number of steps in one dispatch.
    fill: A function that makes batches on the devices from the indices of their examples, see
      `resident.open_feed`; None if the host sends the batches themselves.
  """

  compiled: parallel.DeviceProgram
  rates: Rates
  steps: int
  fill: Callable[[Any], Any] | None = None

  def __call__(
    self, state: Any, constants: Any, batches: Sequence[Mapping[str, np.ndarray]], stop: bool
  ) -> tuple[Any, dict[str, jax.Array], dict[str, jax.Array], jax.Array]:
    """Makes one training step for each of the batches, in order.

    Args:
      state: The replicated training state; its memory is reused for the new state.
      constants: The task's constants, such as the weights of a teacher, replicated.
      batches: This process's share of the batch of each step, or the indices of the share's
        examples if `fill` is set; at most `steps` entries.
      stop: Whether a signal asked this process to end.

    Returns:
      The results of `Step.train_several`, on the devices.
    """
    rows = parallel.split_steps(batches, self.steps)
    if self.fill:
      rows = self.fill(rows)
    count = parallel.number(len(batches))
    return self.compiled(state, self.rates, constants, rows, count, parallel.number(stop))


def compile_steps(experiment: Experiment, constants: Any, workdir: str = "") -> StepProgram:
  """Prints a header of the run and returns the compiled training steps.

  Args:
    experiment: The experiment of this run.
    constants: The task's constants, such as the weights of a teacher, replicated.
    workdir: The directory that the run writes to; "" if it writes nothing.
  """
  settings = experiment.settings
  flops = experiment.once("flops", lambda: forward_flops(experiment))
  steps = settings.steps_per_dispatch or count_steps(3 * flops * settings.batch_size)
  print(make_header(experiment, flops, steps, workdir), flush=True)
  batch, options = blank_batch(experiment), choose_options(settings)
  program = experiment.once(
    "training",
    lambda: announce(
      "compiling",
      lambda: compile_program(
        experiment.step, experiment.shapes, constants, batch, steps, options=options
      ),
    ),
  )
  program = dataclasses.replace(program, rates=parallel.replicate(experiment.rates))
  needed = experiment.once("bytes", lambda: cost.compiled_bytes(program.compiled))
  if needed is not None:
    backend = jax.default_backend()
    print(f"compiled memory per device ({backend}): {needed / 2**20:,.1f} MiB", flush=True)
  return program


def choose_options(settings: RunSettings) -> dict[str, Any]:
  """Returns the compiler options for the training steps of a run."""
  backend = jax.default_backend()
  if backend == "gpu" and settings.deterministic:
    return {"xla_gpu_deterministic_ops": True}
  return CPU_OPTIONS if backend == "cpu" else {}


def compile_program(
  step: Step,
  shapes: Any,
  constants: Any,
  batch: Mapping[str, np.ndarray],
  steps: int,
  *,
  options: Any = None,
) -> StepProgram:
  """Compiles training steps for every device.

  Args:
    step: The training step, whose `axis` is the axis of devices.
    shapes: The shapes and dtypes of the training state on one device.
    constants: The task's constants, such as the weights of a teacher, replicated.
    batch: This process's share of a batch, of which only shapes and dtypes matter.
    steps: The largest number of steps in one dispatch.
    options: The compiler options.
  """
  state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), shapes)
  rows = parallel.split_steps([batch], steps)
  rates = parallel.replicate(Rates.create())
  arguments = (state, rates, constants, rows, parallel.number(1), parallel.number(0))
  compiled = parallel.compile_for(arguments, step.train_several, donate=(0,), options=options)
  return StepProgram(compiled, rates, steps)


def count_steps(flops: int) -> int:
  """Returns the default number of steps per dispatch, if a step takes `flops` FLOPs."""
  return max(1, min(MOST_STEPS, FLOPS_PER_DISPATCH // max(1, flops)))


def make_header(experiment: Experiment, flops: int, steps: int, workdir: str) -> str:
  """Returns a header of a few lines: workdir, devices, data, steps, network and token mixers.

  Args:
    experiment: The experiment of this run.
    flops: The FLOPs of one example's forward pass.
    steps: The largest number of steps in one dispatch.
    workdir: The directory that the run writes to; "" if it writes nothing.
  """
  settings = experiment.settings
  variables = experiment.variables(experiment.shapes)
  parameters = sum(x.size for x in jax.tree.leaves(variables["params"]))
  ran = experiment.implementations().values()
  mixers = f"\ntoken mixers: {_count(ran)}" if ran else ""
  place = f"workdir: {workdir}\n" if workdir else ""
  return (
    f"{place}devices: {_count(device.device_kind for device in jax.devices())}\n"
    f"data: {experiment.examples.describe()}\n"
    f"steps: {experiment.total_steps:,} of {settings.batch_size:,} examples,"
    f" {float(experiment.steps_per_epoch):,.1f} per epoch, up to {steps} in a dispatch\n"
    f"model: {settings.model.name}, {parameters:,} parameters,"
    f" {flops:,} FLOPs per example forward{mixers}{''.join(_find_warnings(experiment))}"
  )


def _find_warnings(experiment: Experiment) -> Iterator[str]:
  """Yields warnings that the GPU lacks its attention kernel, or that the run is too short."""
  settings, total = experiment.settings, experiment.total_steps
  obstacle = find_obstacle()
  if obstacle and any(experiment.implementations(_name_kernels).values()):
    yield f"\nwarning: attention along patterns is slower than it could be: {obstacle}"
  if total < FEW_STEPS and not settings.init_from:
    yield (
      f"\nwarning: {total:,} steps are too few to learn from random weights; lengthen"
      f" duration={settings.duration!r}, or lower batch_size={settings.batch_size}"
    )
  if round(experiment.periods["log_every"]) > total:
    yield (
      f"\nwarning: log_every={settings.log_every!r} is longer than the run, which will log one"
      ' line, at its end; set log_every="5%"'
    )


def _name_kernels(choices: list[Choice]) -> str:
  """Returns the families of a mixer's ops that the GPU kernels could compute, joined by "+"."""
  families = {choice.family for choice in choices if choice.implementation == "kernelized"}
  return "+".join(sorted(families & {*FAMILIES}))


def _count(names: Iterable[str]) -> str:
  return ", ".join(f"{n} x {name}" for name, n in collections.Counter(names).items())


def dry_run(experiment: Experiment) -> None:
  """Prints a config's parameters and, from a few dispatches on zeros, the time of its training."""
  state = experiment.replicate(experiment.start_init()())
  overview = parameter_overview.get_parameter_overview(
    parallel.unreplicate(state.params), include_stats=False
  )
  print(overview, flush=True)
  constants = parallel.replicate(experiment.constants)
  program = compile_steps(experiment, constants)
  batches = [blank_batch(experiment)] * program.steps
  state, *_ = jax.block_until_ready(program(state, constants, batches, False))
  dispatches = 3
  steps = dispatches * program.steps
  batch_size = experiment.settings.batch_size
  progress = Progress(step=0, total=steps, batch_size=batch_size, seconds=0.0)
  for _ in range(dispatches):
    state, *_ = jax.block_until_ready(program(state, constants, batches, False))
  seconds = progress.seconds / steps
  print(
    f"dry run: {seconds:.4f} s per step,"
    f" {experiment.total_steps:,} steps take {seconds * experiment.total_steps / 60:,.1f} min\n"
    f"start: {', '.join(f'{part} {spent:.1f} s' for part, spent in SPENT.items())}",
    flush=True,
  )
  SPENT.clear()  # each phase of a run has its own start


def blank_batch(experiment: Experiment) -> dict[str, np.ndarray]:
  """Returns zeros on the host in the shapes of this process's share of a training batch."""
  rows = experiment.settings.batch_size // jax.process_count()
  return tree.zeros(batch_shapes(experiment.task, rows))


def forward_flops(experiment: Experiment) -> int:
  """Returns the FLOPs of evaluating one example, see `cost.flops`."""
  task, variables = experiment.task, experiment.variables(experiment.shapes)
  batch = evaluation_shapes(task, 1)
  return cost.flops(task.evaluate, variables.pop("params"), variables, experiment.constants, batch)
