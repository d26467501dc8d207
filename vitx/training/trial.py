"""Trains or runs the network of a config on noise, to measure its time, memory and FLOPs.

No data are read. The functions take the settings that `complete_config` returned, in which the
fields that follow from the data set are set.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.analysis import cost
from vitx.analysis.shapes import variable_shapes
from vitx.config.fields import RunSettings
from vitx.models import initialize, lora
from vitx.runtime import parallel
from vitx.runtime.weights import blank_constants
from vitx.tasks import build_task
from vitx.training import compilation
from vitx.training.experiment import batch_shapes, make_step
from vitx.training.step import Rates, Step, TrainState


def _make_step(settings: RunSettings) -> tuple[Step, TrainState]:
  """Returns a training step with a schedule as cheap as any other, and the shapes of its state."""
  return make_step(settings, build_task(settings), schedule=jnp.ones_like)


def make_training_step(settings: RunSettings) -> tuple[Callable, TrainState, dict[str, Any]]:
  """Returns the settings' step `(state, batch) -> (state, metrics)` and its shapes."""
  step, state = _make_step(settings)
  constants = blank_constants(step.task, settings)

  def train(state: TrainState, batch: Mapping[str, jax.Array]) -> tuple[TrainState, dict]:
    return step.train(state, Rates.create(), constants, batch, jnp.int32(0))[:2]

  return train, state, batch_shapes(step.task, settings.batch_size)


def begin(settings: RunSettings) -> TrainState:
  """Returns the state before the first training step of settings from `complete_config`."""
  step, _ = _make_step(settings)
  return jax.jit(step.init)(jax.random.key(0))


@dataclasses.dataclass(frozen=True)
class Dispatch:
  """A program that makes several training steps on noise, compiled for all devices.

  Attributes:
    program: The compiled steps.
    constants: The task's constants, such as the weights of a teacher, on the devices.
    batch: This process's share of a batch.
  """

  program: compilation.StepProgram
  constants: Any
  batch: Mapping[str, np.ndarray]

  def start(self, state: TrainState) -> Callable[[], None]:
    """Returns a function that runs the program once and waits for its end.

    The first call begins from `state`, every other call from the state after the call before.
    """
    held = [parallel.replicate(jax.device_get(state))]
    batches = [self.batch] * self.program.steps

    def dispatch() -> None:
      results = jax.block_until_ready(self.program(held[0], self.constants, batches, False))
      held[0] = results[0]

    return dispatch


def compile_dispatch(settings: RunSettings, steps: int) -> Dispatch:
  """Compiles `steps` training steps of settings from `complete_config`, as `vitx train` does."""
  step, state = _make_step(settings)
  step = dataclasses.replace(step, axis=parallel.AXIS)
  constants = parallel.replicate(blank_constants(step.task, settings))
  batch = draw(batch_shapes(step.task, settings.batch_size // jax.process_count()))
  program = compilation.compile_program(
    step, state, constants, batch, steps, options=compilation.choose_options(settings)
  )
  return Dispatch(program, constants, batch)


def draw(shapes: Any) -> Any:
  """Returns arrays of the given shapes: noise if they are uint8 or float, and zeros otherwise."""
  random = np.random.default_rng(0)

  def fill(x: jax.ShapeDtypeStruct) -> np.ndarray:
    if x.dtype == np.uint8:
      return random.integers(0, 256, x.shape, np.uint8)
    if jnp.issubdtype(x.dtype, jnp.floating):
      return random.normal(size=x.shape).astype(x.dtype)
    return np.zeros(x.shape, x.dtype)

  return jax.tree.map(fill, shapes)


def measure_training_bytes(settings: RunSettings) -> int | None:
  """Returns the bytes of memory that a training step with the whole batch needs on one device.

  Returns None if the compiler does not report them. The settings must come from `complete_config`.
  """
  parts = split_training_bytes(settings)
  return sum(parts.values()) if parts else None


def split_training_bytes(settings: RunSettings) -> dict[str, int]:
  """Divides the memory that a training step needs on one device into three parts.

  Args:
    settings: Settings from `complete_config`.

  Returns:
    The bytes by part; {} if the compiler does not report them. `parameters` are the parameters
    alone, with the frozen ones beside adapters. `optimizer` is everything else that one step leaves
    for the next: moments, the moving average of the parameters, batch statistics. `activations` is
    all the rest: the batch, activations and gradients, of which the compiler gives only the joint
    peak.
  """
  train, state, batch = make_training_step(settings)
  options = compilation.choose_options(settings)
  total = _measure(jax.jit(train, donate_argnums=0).lower(state, batch), options)
  if total is None:
    return {}
  trained, whole = cost.tree_bytes(state.params), cost.tree_bytes(state)
  base = cost.tree_bytes(blank_constants(build_task(settings), settings).get(lora.BASE, {}))
  return {
    "parameters": trained + base,
    "optimizer": whole - trained,
    "activations": total - whole - base,
  }


def measure_inference_bytes(settings: RunSettings, batch: int) -> int | None:
  """Returns the bytes of memory that a forward pass needs on one device.

  Returns None if the compiler does not report them.

  Args:
    settings: Settings from `complete_config`.
    batch: The number of examples.
  """
  return _measure(_lower_inference(settings, batch)[0], {})


def _measure(lowered: jax.stages.Lowered, options: dict[str, Any]) -> int | None:
  """Compiles a program without running it, and returns the bytes that it needs; None if unknown."""
  # LLVM's optimization changes nothing in the buffers; without it a CPU compiles twice as fast.
  if jax.default_backend() == "cpu":
    options = {**options, "xla_backend_optimization_level": 0}
  return cost.compiled_bytes(lowered.compile(compiler_options=options))


def _lower_inference(
  settings: RunSettings, batch: int
) -> tuple[jax.stages.Lowered, jax.ShapeDtypeStruct]:
  """Returns the forward pass, lowered for compilation, and the shape and dtype of its input."""
  model, spec = _describe_inference(settings, batch)
  infer = functools.partial(model.apply, train=False)
  return jax.jit(infer).lower(variable_shapes(model, spec), spec), spec


def _describe_inference(settings: RunSettings, batch: int) -> tuple[Any, jax.ShapeDtypeStruct]:
  """Returns the network, and the shape and dtype of its input."""
  task = build_task(settings)
  shape = (batch, *task.input_spec.shape[1:])
  return task.model, jax.ShapeDtypeStruct(shape, task.input_spec.dtype)


def prepare_training(
  settings: RunSettings, start: Callable[[], TrainState]
) -> tuple[Callable[[], None], int | None]:
  """Compiles a training step on noise for one device.

  Args:
    settings: Settings from `complete_config`.
    start: A function that returns the state before the first step. If this state is on the device,
      nothing else may use it, since the step reuses its memory.

  Returns:
    A function that makes one step, from the state that the step before left, and waits for its end;
    and the bytes that a step needs, or None if the compiler does not report them.
  """
  train, state, batch = make_training_step(settings)
  options = compilation.choose_options(settings)
  lowered = jax.jit(train, donate_argnums=0).lower(state, batch)
  program = lowered.compile(compiler_options=options)
  held: list[Any] = []

  def step() -> None:
    if not held:
      held.extend(jax.device_put((start(), draw(batch))))
    held[0] = jax.block_until_ready(program(*held))[0]

  return step, cost.compiled_bytes(program)


def prepare_inference(
  settings: RunSettings, start: Callable[[], Any]
) -> tuple[Callable[[], None], int | None]:
  """Compiles a forward pass on noise for one device.

  Args:
    settings: Settings from `complete_config`.
    start: A function that returns the variables of the network.

  Returns:
    A function that runs the forward pass once and waits for its end; and the bytes that the pass
    needs, or None if the compiler does not report them.
  """
  lowered, spec = _lower_inference(settings, settings.batch_size)
  program = lowered.compile()
  arguments = functools.cache(lambda: jax.device_put((start(), draw(spec))))

  def infer() -> None:
    jax.block_until_ready(program(*arguments()))

  return infer, cost.compiled_bytes(program)


def begin_inference(settings: RunSettings) -> Any:
  """Returns random variables of the network of settings from `complete_config`."""
  model, spec = _describe_inference(settings, 1)
  make = functools.partial(initialize, model, train=False)
  return jax.jit(make)(jax.random.key(0), draw(spec))


def count_training_flops(settings: RunSettings) -> int:
  """Returns the FLOPs of a training step on a whole batch, see `cost.flops`.

  The settings must come from `complete_config`.
  """
  return cost.flops(*make_training_step(settings))
