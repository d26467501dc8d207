"""A training step without data: what tables, plans and benchmarks compile, and some of them run."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from vitx.analysis import cost
from vitx.training import compilation, parallel
from vitx.training.setup import batch_shapes, make_step
from vitx.training.teacher import blank_constants
from vitx.training.train_step import TrainState

Shapes = Mapping[str, jax.ShapeDtypeStruct]


def make_training_step(config: ConfigDict) -> tuple[Callable, TrainState, dict[str, Any]]:
  """Returns the step of a completed config on one device, and the shapes of its two arguments.

  The step is `(state, batch) -> (state, metrics)`.
  """
  step, state = make_step(config, schedule=jnp.ones_like)  # costs as little as any other
  constants = step.task.constants() | blank_constants(step.task)

  def train(state: TrainState, batch: Mapping[str, jax.Array]) -> tuple[TrainState, dict]:
    return step.train(state, constants, batch, jnp.int32(0))[:2]

  return train, state, batch_shapes(step.task, config.batch_size)


def begin(config: ConfigDict) -> TrainState:
  """Returns the state before the first step of a completed config."""
  step, _ = make_step(config, schedule=jnp.ones_like)
  return jax.jit(step.init)(jax.random.key(0), draw_batch(batch_shapes(step.task, 1)))


def make_dispatch(config: ConfigDict) -> tuple[Callable[[], None], int, int]:
  """Returns what a dispatch of training on noise does, on all devices, as `vitx train` makes it.

  Args:
    config: completed.

  Returns:
    The dispatch, which runs to its end; the steps that it makes; and the FLOPs of all of them.
  """
  train, shapes, batch = make_training_step(config)
  flops = cost.flops(train, shapes, batch)
  step, _ = make_step(config, schedule=jnp.ones_like)
  step = dataclasses.replace(step, axis=parallel.AXIS)
  constants = parallel.replicate(step.task.constants() | blank_constants(step.task))
  held, drawn = [parallel.replicate(jax.device_get(begin(config)))], draw_batch(batch)
  steps = config.steps_per_dispatch or compilation.count_steps(flops)
  program = compilation.compile_program(step, held[0], constants, drawn, steps)

  def dispatch() -> None:
    held[0], *_ = jax.block_until_ready(program(held[0], constants, [drawn] * steps, False))

  return dispatch, steps, steps * flops


def draw_batch(shapes: Shapes) -> dict[str, np.ndarray]:
  """Returns a batch of noise where there are images, and of zeros elsewhere."""
  random = np.random.default_rng(0)

  def draw(x: jax.ShapeDtypeStruct) -> np.ndarray:
    if x.dtype == np.uint8:
      return random.integers(0, 256, x.shape, np.uint8)
    return np.zeros(x.shape, x.dtype)

  return {name: draw(x) for name, x in shapes.items()}


def measure_training_bytes(config: ConfigDict) -> int | None:
  """Returns what a compiled step of a completed config's whole batch needs on one device."""
  train, state, batch = make_training_step(config)
  # LLVM's optimization changes nothing in the buffers; without it a CPU compiles twice as fast.
  options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
  step = jax.jit(train, donate_argnums=0, compiler_options=options)
  return cost.compiled_bytes(step.lower(state, batch).compile())


def count_training_flops(config: ConfigDict) -> int:
  """Returns the FLOPs of a completed config's training step, its whole batch, see `cost.flops`."""
  return cost.flops(*make_training_step(config))
