"""Turns a config into an `Experiment`: all objects of a training, checked before compiling."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from vitx.analysis.implementations import describe_choices, implementations
from vitx.checkpoints import tree
from vitx.config import fields
from vitx.config.errors import ConfigError
from vitx.config.registry import build
from vitx.data import in_memory
from vitx.data.batches import TrainBatches
from vitx.data.dataset import ROLES, ArraySpec, DatasetInfo, Examples, Source, spread
from vitx.data.readable import listing_all
from vitx.data.sources import open_source
from vitx.models import check_model, logged, resolve_model, stacked
from vitx.ops.implementation import Choice
from vitx.tasks import build_task, task_class
from vitx.tasks.base import Figures, Task
from vitx.training import attention_entropy, durations, parallel, teacher
from vitx.training.evaluation import describe_figures
from vitx.training.failures import run_breakable
from vitx.training.optim.optimizers import (
  find_frozen,
  find_optimizer,
  is_elementwise,
  make_optimizer,
)
from vitx.training.optim.schedules import SCHEDULES, make_schedule
from vitx.training.record import tracking
from vitx.training.step import Step, TrainState

# The fields that contain a duration, except the length of the run.
DURATIONS = tuple(
  path
  for path, each in fields.declarations().items()
  if each.type == fields.Duration and path != "duration"
)
CADENCES = ("log_every", "evaluation.every", "checkpoint.every")
Shapes = Mapping[str, jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True)
class Experiment:
  """All objects that the training of a config needs.

  Attributes:
    config: The resolved config, in which the fields that depend on the data are set.
    source: The data set with its train, validation and test examples.
    examples: The examples as the task reads them, such as windows of tokens instead of documents.
    step: The training step, to be run on each device.
    shapes: The shapes and dtypes of the training state on one device.
    constants: The arrays on the host that the task needs and that are neither trained nor saved,
      such as the teacher's weights in distillation.
    steps_per_epoch: The number of batches per pass over *train*; not an integer in general.
    total_steps: The step at which the run ends.
  """

  config: ConfigDict
  source: Source
  examples: Source
  step: Step
  shapes: TrainState
  constants: Any
  steps_per_epoch: Fraction
  total_steps: int

  @property
  def task(self) -> Task:
    """The task that is learned."""
    return self.step.task

  def tokens(self) -> int | None:
    """Returns N, the number of tokens to which the model adds positions; None if it adds none."""
    layout = self.task.token_layout()
    return None if layout is None else layout.length

  def init_state(self) -> TrainState:
    """Returns the state before the first step, on the host; `config.init_seed` determines it."""

    def compute(function: Callable, *arguments: Any) -> Any:
      lowered = jax.jit(function).lower(*arguments)
      return jax.device_get(run_breakable(lowered.compile)(*arguments))

    key, cycle = jax.random.key(self.config.init_seed), self.step.cycle
    batch = tree.zeros(_shapes(self.task.element_spec, 1))
    if not cycle:
      return compute(self.step.init, key, batch)
    # Layers are stacked on the host: the compiler takes a minute over hundreds of concatenations.
    variables = compute(self.task.init, key, batch)
    return stacked.unstack(compute(self.step.begin, stacked.stack(variables, cycle)))

  def named_shapes(self) -> TrainState:
    """Returns the shapes and dtypes of the state in a checkpoint, where no layers are stacked."""
    return jax.eval_shape(stacked.unstack, self.shapes)

  def replicate(self, state: TrainState) -> TrainState:
    """Copies a state from the host to every device, and stacks the arrays of repeated layers."""
    return parallel.replicate(stacked.stack(state, self.step.cycle))

  def unreplicate(self, state: TrainState) -> TrainState:
    """Copies a state from the devices to the host, and unstacks the arrays of repeated layers."""
    return stacked.unstack(parallel.unreplicate(state))

  def batches(self) -> TrainBatches:
    """Returns this process's share of the training batches."""
    config = self.config
    batches = TrainBatches(
      self.examples.train,
      transform=self.task.transform(train=True),
      batch_size=config.batch_size,
      seed=config.data_seed,
      repeats=config.data.repeats,
      sampling=config.data.sampling,
      memory=config.data.memory,
      threads=config.data.threads,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
    )
    for name, wanted in self.task.train_spec.items():
      spec = batches.spec.get(name)
      if spec != ArraySpec(wanted.shape, wanted.dtype.name):
        array = f"no {name}" if spec is None else f"{name} {spec.dtype} {spec.shape}"
        raise ConfigError(
          f"data.source={self.source.info.name!r}: the task takes {name} {wanted.dtype}"
          f" {wanted.shape}, but the examples have {array}."
        )
    return batches

  def implementations(
    self, describe: Callable[[list[Choice]], str] = describe_choices
  ) -> dict[str, str]:
    """Returns the implementation that each token mixer uses in training, by the mixer's path.

    The choice depends on the number of examples that a device processes at once. `describe` makes a
    text of the choices for one mixer's operations.
    """
    examples = self.config.batch_size // jax.device_count() // self.config.grad_accum_steps
    return implementations(self.task.model, self.task.input_spec, examples, describe)

  def load_examples(self, role: str) -> Examples:
    """Returns a role's examples, in memory if they fit; `evaluation.limit` limits *validation*."""
    data, limit = self.config.data, self.config.evaluation.limit
    examples = self.examples.role(role)
    return in_memory.keep(
      spread(examples, limit) if limit and role == "validation" else examples,
      transform=self.task.transform(train=False),
      memory=data.memory,
      threads=data.threads,
    )

  def references(self, role: str) -> dict[str, float]:
    """Returns the metrics of methods that learn nothing, see `Task.references`."""
    return self.task.references(self.source.train, self.source.role(role))

  def describe(self, figures: Figures) -> str:
    """Returns a text for the console about an evaluation's figures, for all evaluated weights."""
    return describe_figures(self.task, figures, self.config.evaluation.weights)

  def is_due(self, step: int, every: str) -> bool:
    """Returns whether an event with the period `every` falls on `step`."""
    return durations.is_due(step, every, self.steps_per_epoch)

  def next_event(self, step: int, most: int) -> int:
    """Returns the next step that logs, evaluates, saves or ends the run, at most `step + most`."""
    cadences = [fields.find(self.config, field) for field in CADENCES]
    last = min(step + most, self.total_steps)
    later = range(step + 1, last)
    return next((s for s in later if any(self.is_due(s, every) for every in cadences)), last)


def resolve(config: ConfigDict, source: Source | DatasetInfo) -> ConfigDict:
  """Returns a copy of a config in which the fields that follow from other fields or data are set.

  A description of the data set is enough if no example must be read.
  """
  config = config.copy_and_resolve_references()
  with config.unlocked():
    fields.set_groups(config)
    for seed in fields.SEEDS:
      config[seed] = fields.seed_of(config, seed)
    task_class(config.task).resolve(config, source)
    config.model = ConfigDict(resolve_model(config.model, seed=config.graph_seed))
  return config


def open_data(config: ConfigDict, class_names: Sequence[str] | None = None) -> Source:
  """Opens the data set of a config that is not resolved yet.

  The `data_seed`, or else the `seed`, chooses the examples of validation. The classes have the
  order of `class_names` if they are set.
  """
  return open_source(config.data, fields.seed_of(config, "data_seed"), class_names)


def make_experiment(
  config: ConfigDict,
  *,
  is_trial: bool = False,
  class_names: Sequence[str] | None = None,
) -> Experiment:
  """Makes the experiment of a config, and checks all that can be checked without compiling.

  The config of a teacher, or a prepared data set, may name Python code, which is imported only
  as `registry.trusting` allows.

  Args:
    config: The config that `get_config` returned.
    is_trial: Whether the experiment will not be trained. If so, the weights of a teacher, which may
      not exist yet, are zeros, and packages of a tracker may be missing.
    class_names: The names of the classes, in the order that the run recorded when it began; None if
      it recorded none.
  """
  fields.check_config(config)
  if not isinstance(config.model, str):
    check_model(config.model)
  config = teacher.with_model(config)
  _check_without_data(config)
  tracking.check(config, is_trial=is_trial)
  source = open_data(config, class_names)
  with listing_all(source.all_roles(), config.data.threads):
    config = resolve(config, source)
  task = build_task(config)
  examples = read_examples(task, source)
  config = fit_to_examples(config, len(examples.train))
  steps_per_epoch = Fraction(len(examples.train), config.batch_size)
  end = total = durations.to_steps(config.duration, steps_per_epoch)
  if config.stop_after != "":
    end = durations.to_steps(config.stop_after, steps_per_epoch, "stop_after")
  if not 1 <= end <= total:
    raise ConfigError(
      f"duration={config.duration!r} is {total} steps, and stop_after={config.stop_after!r} is"
      f" {end}; a run has at least one step, and at most its duration."
    )
  schedule = make_schedule(config.schedule, config.learning_rate, total, steps_per_epoch)
  step, shapes = make_step(config, schedule)
  if config.schedule.name == "plateau":
    step.task.plateau_figure(config.schedule.get("mode", "min"))
  constants = step.task.constants()
  zeros = constants | teacher.blank_constants(step.task)
  # The training pass has parts of its own (dropout, mixing): trace it too, which compiles nothing.
  batch = batch_shapes(step.task, config.batch_size // jax.device_count())
  jax.eval_shape(step.train, shapes, zeros, batch, jnp.int32(0))
  if config.evaluation.attention_entropy:
    example = evaluation_shapes(task, 1)
    attention_entropy.check(config, shapes.params, shapes.model_state, example)
  if not is_trial:
    constants = constants | teacher.load_constants(step.task, config, source.info)
  step = dataclasses.replace(step, axis=parallel.AXIS)
  arrays = zeros if is_trial else constants
  return Experiment(config, source, examples, step, shapes, arrays, steps_per_epoch, end)


def halve_batch(config: ConfigDict, examples: int) -> int:
  """Returns the batch size of a run, which is smaller than `config.batch_size` for little data.

  The batch size is halved until an epoch over `examples` examples has at least
  `config.min_steps_per_epoch` steps, but not below `SMALLEST_BATCH`, and only while it stays a
  multiple of `config.grad_accum_steps`. With 0 examples, the result is the smallest batch size that
  the config can get with any data.
  """
  least = config.min_steps_per_epoch or 0
  batch, unit = config.batch_size, 2 * config.grad_accum_steps
  while batch >= 2 * fields.SMALLEST_BATCH and batch % unit == 0 and batch * least > examples:
    batch //= 2
  return batch


def fit_to_examples(config: ConfigDict, examples: int) -> ConfigDict:
  """Returns a config in which the batch size and all durations fit the number of training examples.

  The batch size is halved if an epoch would have too few steps, see `halve_batch`. Durations such
  as "5%" or "30 epochs, at least 200 steps" become plain numbers of steps, see `durations.settle`.
  """
  config = config.copy_and_resolve_references()
  batch = halve_batch(config, examples)
  parallel.check_batch(batch, config.grad_accum_steps)
  if batch > examples:
    raise ConfigError(
      f"batch_size={batch} is larger than the {examples} training examples; lower it."
    )
  per_epoch = Fraction(examples, batch)
  with config.unlocked():
    config.batch_size = batch
    config.duration = durations.settle(config.duration, per_epoch)
    total = durations.to_steps(config.duration, per_epoch)
    for path in (*DURATIONS, *(f"schedule.{name}" for name in config.schedule)):
      section, _, name = path.rpartition(".")
      node = config[section] if section else config
      node[name] = durations.settle(node[name], per_epoch, total, path)
  return config


def read_examples(task: Task, source: Source) -> Source:
  """Returns a source with the examples that a task trains and evaluates on, see `Task.examples`."""
  roles = {role: task.examples(source.role(role), train=role == "train") for role in ROLES}
  return dataclasses.replace(source, **roles)  # type: ignore[arg-type]


def make_step(
  config: ConfigDict, schedule: Callable[[jax.Array], jax.Array]
) -> tuple[Step, TrainState]:
  """Returns the training step of a resolved config on one device, and the shapes of its state."""
  task = build_task(config)
  batch = _shapes(task.element_spec, 1)
  with logged.collect_names() as log:  # a new function, since JAX traces an old one only once
    variables = jax.eval_shape(lambda *arrays: task.init(*arrays), jax.random.key(0), batch)
  # Deep networks compile in a tenth of the time where the optimizer lets their layers be stacked.
  cycle = getattr(task.model, "layer_cycle", 0) if is_elementwise(config) else 0
  step = Step(
    task=task,
    optimizer=make_optimizer(config, stacked.first_cycle(variables["params"], cycle)),
    schedule=schedule,
    seed=config.data_seed,
    grad_accum_steps=config.grad_accum_steps,
    ema_decay=config.ema_decay,
    ema_warmup=config.ema_warmup,
    half=config.model.get("dtype", "float32") == "float16",
    cycle=cycle,
    frozen=find_frozen(config, variables["params"]),
    logged=tuple(sorted(log)),
  )
  return step, jax.eval_shape(step.begin, variables)


def batch_shapes(task: Task, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of a training batch of `rows` examples."""
  index = jax.ShapeDtypeStruct((rows,), np.int32)
  return _shapes(task.train_spec, rows) | {"index": index}


def evaluation_shapes(task: Task, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of an evaluation batch of `rows` examples."""
  mask = jax.ShapeDtypeStruct((rows,), np.bool_)
  return _shapes(task.element_spec, rows) | {"mask": mask}


def _shapes(spec: Shapes, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of the arrays of `rows` examples."""
  return {name: jax.ShapeDtypeStruct((rows, *x.shape), x.dtype) for name, x in spec.items()}


def _check_without_data(config: ConfigDict) -> None:
  """Checks the fields that need no data, since to open the data set may take a minute."""
  parallel.check_batch(config.batch_size, config.grad_accum_steps)
  find_optimizer(config.optimizer)
  build(SCHEDULES, config.schedule, "schedule", hidden=("run",))
  weights = config.evaluation.weights
  if not weights or len(set(weights)) < len(weights):
    raise ConfigError(f"evaluation.weights={weights!r} must name ema, raw or both, each once.")
  if len(weights) > 1 and not config.ema_decay:
    raise ConfigError(f"evaluation.weights={weights!r} compares an average; set ema_decay.")
  total = durations.to_steps(durations.settle(config.duration, 1), 1)
  for field in CADENCES:
    durations.is_due(1, durations.settle(fields.find(config, field), 1, total, field), 1, field)
