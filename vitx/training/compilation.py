"""What happens before the first step: the run is announced and its step compiled."""

import collections
from typing import Any

import jax
import numpy as np
from clu import parameter_overview

from vitx.analysis import cost
from vitx.training import parallel
from vitx.training.progress import Progress, announce
from vitx.training.setup import Experiment, batch_shapes, evaluation_shapes


def compile_step(experiment: Experiment, state: Any, constants: Any) -> jax.stages.Compiled:
  """Prints devices, parameters and costs; returns the compiled training step.

  Args:
    experiment: of this run.
    state: replicated.
    constants: of the task, replicated.
  """
  config = experiment.config
  kinds = collections.Counter(device.device_kind for device in jax.devices())
  print("devices:", ", ".join(f"{n} x {kind}" for kind, n in kinds.items()), flush=True)
  overview = parameter_overview.get_parameter_overview(
    parallel.unreplicate(state.params), include_stats=False
  )
  print(overview, flush=True)
  print(f"FLOPs per example, forward: {_forward_flops(experiment):,}", flush=True)
  arguments = (state, constants, _blank_batch(experiment), parallel.flag(False))
  deterministic = config.deterministic and jax.default_backend() == "gpu"
  options = {"xla_gpu_deterministic_ops": True} if deterministic else None
  compiled = announce(
    "compiling",
    lambda: parallel.compile_for(arguments, experiment.step.train, donate=(0,), options=options),
  )
  needed = cost.compiled_bytes(compiled)
  if needed is not None:
    backend = jax.default_backend()
    print(f"compiled memory per device ({backend}): {needed / 2**20:,.1f} MiB", flush=True)
  return compiled


def dry_run(experiment: Experiment, state: Any) -> None:
  """Compiles and times three steps on a blank batch after a first one; prints how long a run takes.

  Args:
    experiment: of this run.
    state: replicated; used up.
  """
  constants = parallel.replicate(experiment.constants)
  step = compile_step(experiment, state, constants)
  fed = (constants, _blank_batch(experiment), parallel.flag(False))
  state, *_ = jax.block_until_ready(step(state, *fed))
  steps = 3
  progress = Progress(step=0, total=steps, batch_size=experiment.config.batch_size, seconds=0.0)
  for _ in range(steps):
    state, *_ = jax.block_until_ready(step(state, *fed))
  seconds = progress.seconds / steps
  print(
    f"dry run: {seconds:.4f} s per step,"
    f" {experiment.total_steps:,} steps take {seconds * experiment.total_steps / 60:,.1f} min",
    flush=True,
  )


def _blank_batch(experiment: Experiment) -> Any:
  """Returns this process's share of a batch, zeros on the devices."""
  rows = experiment.config.batch_size // jax.process_count()
  shapes = batch_shapes(experiment.task, rows)
  return parallel.split(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes))


def _forward_flops(experiment: Experiment) -> int:
  shapes, task = experiment.shapes, experiment.task
  batch = evaluation_shapes(task, 1)
  return cost.flops(task.evaluate, shapes.params, shapes.model_state, experiment.constants, batch)
