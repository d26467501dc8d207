"""What happens before the first step: the run is announced and its steps compiled."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from clu import parameter_overview
from ml_collections import ConfigDict

from vitx.analysis import cost
from vitx.data.dataset import ROLES
from vitx.training import parallel
from vitx.training.experiment import Experiment, batch_shapes, evaluation_shapes
from vitx.training.record.progress import Progress, announce
from vitx.training.step import Step

# What a dispatch may have where the config leaves it open: a second or two of a CPU's time, so that
# a signal is soon heeded.
FLOPS_PER_DISPATCH = 2**37
MOST_STEPS = 16
# XLA's own order of a step's operations keeps more of them ready to run side by side, and their
# operands in memory: a third more. A device of one core gains nothing by it.
CPU_OPTIONS = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


@dataclasses.dataclass(frozen=True)
class StepProgram:
  """Training steps as compiled for every device.

  Attributes:
    compiled: of `Step.train_several`.
    steps: the most that one dispatch makes.
    fill: makes batches on the devices of what is sent there, see `resident`; None if they are sent.
  """

  compiled: jax.stages.Compiled
  steps: int
  fill: Callable[[Any], Any] | None = None

  def __call__(
    self, state: Any, constants: Any, batches: Sequence[Mapping[str, np.ndarray]], stop: bool
  ) -> tuple[Any, dict[str, jax.Array], dict[str, jax.Array], jax.Array]:
    """Makes a step for each of this process's batches, in order; see `Step.train_several`."""
    rows = parallel.split_steps(batches, self.steps)
    if self.fill:
      rows = self.fill(rows)
    count = parallel.number(len(batches))
    return self.compiled(state, constants, rows, count, parallel.number(stop))


def compile_steps(
  experiment: Experiment,
  state: Any,
  constants: Any,
  workdir: str = "",
  *,
  run: parallel.Runner = parallel.at_once,
) -> StepProgram:
  """Prints a header of the run; returns the compiled training steps.

  Args:
    experiment: of this run.
    state: replicated.
    constants: of the task, replicated.
    workdir: where the run writes; "" if nowhere.
    run: calls the compiler, see `parallel.compile_for`.
  """
  config = experiment.config
  flops = forward_flops(experiment)
  steps = config.steps_per_dispatch or count_steps(3 * flops * config.batch_size)
  print(make_header(experiment, flops, steps, workdir), flush=True)
  blank, options = blank_batch(experiment), choose_options(config)
  program = announce(
    "compiling",
    lambda: compile_program(
      experiment.step, state, constants, blank, steps, options=options, run=run
    ),
  )
  print_memory(program.compiled)
  return program


def choose_options(config: ConfigDict) -> dict[str, Any]:
  """Returns what a config tells the compiler of training steps."""
  backend = jax.default_backend()
  if backend == "gpu" and config.deterministic:
    return {"xla_gpu_deterministic_ops": True}
  return CPU_OPTIONS if backend == "cpu" else {}


def print_memory(compiled: jax.stages.Compiled) -> None:
  """Prints what a compiled program needs, where that is known."""
  needed = cost.compiled_bytes(compiled)
  if needed is not None:
    backend = jax.default_backend()
    print(f"compiled memory per device ({backend}): {needed / 2**20:,.1f} MiB", flush=True)


def compile_program(
  step: Step,
  state: Any,
  constants: Any,
  batch: Mapping[str, np.ndarray],
  steps: int,
  *,
  options: Any = None,
  run: parallel.Runner = parallel.at_once,
) -> StepProgram:
  """Compiles training steps for every device.

  Args:
    step: over the axis of the devices.
    state: replicated.
    constants: of the task, replicated.
    batch: this process's share of one, of which shapes and dtypes count.
    steps: the most that one dispatch makes.
    options: for the compiler.
    run: calls the compiler, see `parallel.compile_for`.
  """
  rows = parallel.split_steps([batch], steps)
  arguments = (state, constants, rows, parallel.number(1), parallel.number(0))
  compiled = parallel.compile_for(
    arguments, step.train_several, donate=(0,), options=options, run=run
  )
  return StepProgram(compiled, steps)


def count_steps(flops: int) -> int:
  """Returns how many steps of so many FLOPs one dispatch makes, where nothing else says it."""
  return max(1, min(MOST_STEPS, FLOPS_PER_DISPATCH // max(1, flops)))


def make_header(experiment: Experiment, flops: int, steps: int, workdir: str) -> str:
  """Returns what is about to run, in a few lines: where, devices, data, steps, network.

  Args:
    experiment: of this run.
    flops: of an example, forward.
    steps: of a dispatch, at most.
    workdir: where the run writes; "" if nowhere.
  """
  config, info = experiment.config, experiment.source.info
  examples = ", ".join(f"{len(experiment.examples.role(role)):,} {role}" for role in ROLES)
  classes = "" if info.class_names is None else f", {len(info.class_names):,} classes"
  parameters = sum(x.size for x in jax.tree.leaves(experiment.shapes.params))
  ran = experiment.implementations().values()
  mixers = f"\ntoken mixers: {_count(ran)}" if ran else ""
  place = f"workdir: {workdir}\n" if workdir else ""
  return (
    f"{place}devices: {_count(device.device_kind for device in jax.devices())}\n"
    f"data: {info.name}, examples {examples}{classes}\n"
    f"steps: {experiment.total_steps:,} of {config.batch_size:,} examples,"
    f" {float(experiment.steps_per_epoch):,.1f} per epoch, up to {steps} in a dispatch\n"
    f"model: {config.model.name}, {parameters:,} parameters,"
    f" {flops:,} FLOPs per example forward{mixers}"
  )


def _count(names: Iterable[str]) -> str:
  return ", ".join(f"{n} x {name}" for name, n in collections.Counter(names).items())


def dry_run(experiment: Experiment, *, run: parallel.Runner = parallel.at_once) -> None:
  """Prints the table of parameters and, after three timed dispatches, how long a run takes.

  Args:
    experiment: what a run would train.
    run: calls the compiler, see `parallel.compile_for`.
  """
  state = experiment.replicate(experiment.init_state(run))
  overview = parameter_overview.get_parameter_overview(
    parallel.unreplicate(state.params), include_stats=False
  )
  print(overview, flush=True)
  constants = parallel.replicate(experiment.constants)
  program = compile_steps(experiment, state, constants, run=run)
  batches = [blank_batch(experiment)] * program.steps
  state, *_ = jax.block_until_ready(program(state, constants, batches, False))
  dispatches = 3
  steps = dispatches * program.steps
  progress = Progress(step=0, total=steps, batch_size=experiment.config.batch_size, seconds=0.0)
  for _ in range(dispatches):
    state, *_ = jax.block_until_ready(program(state, constants, batches, False))
  seconds = progress.seconds / steps
  print(
    f"dry run: {seconds:.4f} s per step,"
    f" {experiment.total_steps:,} steps take {seconds * experiment.total_steps / 60:,.1f} min",
    flush=True,
  )


def blank_batch(experiment: Experiment) -> dict[str, np.ndarray]:
  """Returns this process's share of a batch, zeros on the host."""
  rows = experiment.config.batch_size // jax.process_count()
  shapes = batch_shapes(experiment.task, rows)
  return {name: np.zeros(x.shape, x.dtype) for name, x in shapes.items()}


def forward_flops(experiment: Experiment) -> int:
  """Returns the FLOPs of one example's evaluation, see `cost.flops`."""
  shapes, task = experiment.shapes, experiment.task
  batch = evaluation_shapes(task, 1)
  return cost.flops(task.evaluate, shapes.params, shapes.model_state, experiment.constants, batch)
