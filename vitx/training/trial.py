"""Training and inference without data: what tables, plans and benchmarks compile or run."""

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from vitx.analysis import cost
from vitx.analysis.shapes import variable_shapes
from vitx.data.sources import find_info, make_up_statistics
from vitx.models import initialize
from vitx.tasks import build_task, task_class
from vitx.training import compilation, parallel
from vitx.training.experiment import batch_shapes, make_step, resolve
from vitx.training.step import TrainState
from vitx.training.teacher import blank_constants

Shapes = Mapping[str, jax.ShapeDtypeStruct]


def complete_config(config: ConfigDict) -> ConfigDict:
  """Returns the config with what follows from its data set.

  A set of TFDS, or of ours, is known by its name; any other is opened where the config says too
  little. Statistics of the pixels are made up: they change nothing of what is shown.

  Raises:
    ConfigError: the data set has to be asked for its classes or image size, and is not prepared.
  """
  info = task_class(config.task).state_info(config) or find_info(config.data)
  config = config.copy_and_resolve_references()
  with config.unlocked():
    make_up_statistics(config.data, info)
  return resolve(config, info)


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


@dataclasses.dataclass(frozen=True)
class Dispatch:
  """Training steps on noise, compiled for all devices.

  Attributes:
    program: of as many steps as it has.
    constants: of the task, on the devices.
    batch: of this process.
  """

  program: compilation.StepProgram
  constants: Any
  batch: Mapping[str, np.ndarray]

  def start(self, state: TrainState) -> Callable[[], None]:
    """Returns what makes the steps and waits for their end; it goes on from its own state."""
    held = [parallel.replicate(jax.device_get(state))]
    batches = [self.batch] * self.program.steps

    def dispatch() -> None:
      made = jax.block_until_ready(self.program(held[0], self.constants, batches, False))
      held[0] = made[0]

    return dispatch


def compile_dispatch(config: ConfigDict, steps: int) -> Dispatch:
  """Compiles so many training steps of a completed config as `vitx train` does."""
  step, state = make_step(config, schedule=jnp.ones_like)  # costs as little as any other
  step = dataclasses.replace(step, axis=parallel.AXIS)
  constants = parallel.replicate(step.task.constants() | blank_constants(step.task))
  batch = draw_batch(batch_shapes(step.task, config.batch_size // jax.process_count()))
  placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), state)
  program = compilation.compile_program(
    step, placed, constants, batch, steps, options=compilation.choose_options(config)
  )
  return Dispatch(program, constants, batch)


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
  found = split_training_bytes(config)
  return sum(found.values()) if found else None


def split_training_bytes(config: ConfigDict) -> dict[str, int]:
  """Returns what a compiled step of a completed config's whole batch needs, in its parts.

  Returns:
    `parameters`; `optimizer`: all else that a step keeps for the next, moments, the average of the
    parameters, batch statistics; `activations`: what a step needs besides: activations and
    gradients, of which the compiler plans when each comes and goes, so that only their sum has a
    peak; and the batch. Empty where the compiler does not say.
  """
  train, state, batch = make_training_step(config)
  options = compilation.choose_options(config)
  total = cost.compiled_bytes(_compile_quickly(train, state, batch, donate=(0,), options=options))
  if total is None:
    return {}
  parameters, whole = cost.tree_bytes(state.params), cost.tree_bytes(state)
  return {
    "parameters": parameters,
    "optimizer": whole - parameters,
    "activations": total - whole,
  }


def measure_inference_bytes(config: ConfigDict, batch: int) -> int | None:
  """Returns what a completed config's network needs on one device for so many examples."""
  model, given = _describe_inference(config, batch)
  compiled = _compile_quickly(model.apply, variable_shapes(model, given), given)
  return cost.compiled_bytes(compiled)


def _compile_quickly(
  function: Callable,
  *args: Any,
  donate: tuple[int, ...] = (),
  options: Mapping[str, Any] = types.MappingProxyType({}),
) -> Any:
  """Compiles what is not run, for its memory."""
  # LLVM's optimization changes nothing in the buffers; without it a CPU compiles twice as fast.
  options = dict(options)
  if jax.default_backend() == "cpu":
    options["xla_backend_optimization_level"] = 0
  return jax.jit(function, donate_argnums=donate, compiler_options=options).lower(*args).compile()


def _describe_inference(config: ConfigDict, batch: int) -> tuple[Any, jax.ShapeDtypeStruct]:
  """Returns the network and what it is called with."""
  task = build_task(config)
  return task.model, jax.ShapeDtypeStruct(
    (batch, *task.input_spec.shape[1:]), task.input_spec.dtype
  )


def prepare_training(
  config: ConfigDict, start: Callable[[], TrainState]
) -> tuple[Callable[[], None], int | None]:
  """Returns a step of a completed config on noise, on one device, and the bytes that it needs.

  The step runs to its end and goes on from its own state.

  Args:
    config: completed.
    start: returns the state of the first step, which no other may use if it is on the device.
  """
  train, state, batch = make_training_step(config)
  options = compilation.choose_options(config)
  lowered = jax.jit(train, donate_argnums=0).lower(state, batch)
  program = lowered.compile(compiler_options=options)
  held: list[Any] = []

  def step() -> None:
    if not held:
      held.extend(jax.device_put((start(), draw_batch(batch))))
    held[0] = jax.block_until_ready(program(*held))[0]

  return step, cost.compiled_bytes(program)


def prepare_inference(
  config: ConfigDict, start: Callable[[], Any]
) -> tuple[Callable[[], None], int | None]:
  """Returns a completed config's network on noise, on one device, and the bytes that it needs.

  Args:
    config: completed.
    start: returns the variables.
  """
  model, given = _describe_inference(config, config.batch_size)
  program = jax.jit(model.apply).lower(variable_shapes(model, given), given).compile()
  held: list[Any] = []

  def infer() -> None:
    if not held:
      held.extend(jax.device_put((start(), _draw(given))))
    jax.block_until_ready(program(*held))

  return infer, cost.compiled_bytes(program)


def begin_inference(config: ConfigDict) -> Any:
  """Returns the variables that training of a completed config starts from."""
  model, given = _describe_inference(config, 1)
  return jax.jit(lambda key, x: initialize(model, key, x))(jax.random.key(0), _draw(given))


def _draw(x: jax.ShapeDtypeStruct) -> np.ndarray:
  """Returns normal numbers, or zeros where integers are wanted, such as the bytes of a text."""
  if not jnp.issubdtype(x.dtype, jnp.floating):
    return np.zeros(x.shape, x.dtype)
  return np.random.default_rng(0).normal(size=x.shape).astype(x.dtype)


def count_training_flops(config: ConfigDict) -> int:
  """Returns the FLOPs of a completed config's training step, its whole batch, see `cost.flops`."""
  return cost.flops(*make_training_step(config))
