"""Turns a config into an `Experiment`: all objects of a training, checked before compiling."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.analysis.implementations import describe_choices, implementations
from vitx.checkpoints import workdir as wd
from vitx.config import fields
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings
from vitx.config.registry import build
from vitx.config.settings import change
from vitx.data import in_memory
from vitx.data.batches import TrainBatches
from vitx.data.dataset import ROLES, ArraySpec, Examples, Source, spread
from vitx.data.readable import listing_all
from vitx.models import check_model, logged, lora, stacked
from vitx.models.names import count_blocks
from vitx.ops.implementation import Choice, current_rule
from vitx.runtime import parallel, sharing
from vitx.runtime.evaluation import describe_figures, evaluation_shapes, stack_shapes
from vitx.runtime.progress import spending
from vitx.runtime.weights import blank_constants, load_base, load_constants, with_teacher_model
from vitx.tasks import settle
from vitx.tasks.base import Task, find_layout, init_shapes, init_variables, measurements
from vitx.tasks.figures import Figures, followed
from vitx.training import attention_entropy, durations
from vitx.training.optim.optimizers import (
  find_frozen,
  find_interpolation,
  find_optimizer,
  is_elementwise,
  make_optimizer,
)
from vitx.training.optim.schedules import SCHEDULES, Schedule, make_schedule
from vitx.training.parameters import parameter_names
from vitx.training.record import provenance, tracking
from vitx.training.step import Rates, Step, TrainState

# The fields that contain a duration, except the length of the run.
DURATIONS = tuple(
  path
  for path, field in fields.declarations().items()
  if field.type == fields.Duration and path != "duration"
)
CADENCES = ("log_every", "evaluation.every", "checkpoint.every")
# The fields on which no compiled program of a run depends. The seed of random graphs is a field of
# the network too, on which programs do depend.
UNSHAPED = {"seed", *fields.SEEDS, "learning_rate", "init_from", "task.teacher", "data.fold"}
UNSHAPED |= {"data.mean", "data.std", "task.class_weights", "task.target_mean", "task.target_std"}
UNSHAPED |= {"evaluation.every", "evaluation.limit", "evaluation.weights", *provenance.FREE}
UNSHAPED -= {"steps_per_dispatch", "evaluation.batch_size", "evaluation.attention_entropy"}


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment(settle.Settled):
  """All objects that the training of a config needs.

  Attributes:
    settings: The resolved settings, in which the fields that depend on the data are set.
    task: The task that is learned.
    source: The data set with its train, validation and test examples.
    examples: The examples as the task reads them, such as windows of tokens instead of documents.
    step: The training step, to be run on each device.
    shapes: The shapes and dtypes of the training state on one device.
    rates: The seed and the learning rate, which are arguments of the step.
    key: A text that is equal for runs that can share compiled programs.
    constants: The arrays on the host that the task needs and that are neither trained nor saved,
      such as the teacher's weights in distillation.
    steps_per_epoch: The number of batches per pass over *train*; not an integer in general.
    total_steps: The step at which the run ends.
    periods: The exact number of steps between two events of each field in `CADENCES`.
  """

  source: Source
  examples: Source
  step: Step
  shapes: TrainState
  rates: Rates
  key: str
  constants: Any
  steps_per_epoch: Fraction
  total_steps: int
  periods: Mapping[str, Fraction]

  def once(self, name: str, make: Callable[[], Any]) -> Any:
    """Returns a result that runs with equal keys share, see `sharing.once`."""
    return sharing.once(lambda: (self.key, name), make)

  def listing(self) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which an error lists all examples that cannot be read."""
    return listing_all(self.source.all_roles(), self.settings.data.threads)

  def tokens(self) -> int | None:
    """Returns N, the number of tokens to which the model adds positions; None if it adds none."""
    layout = find_layout(self.task)
    return None if layout is None else layout.length

  def start_init(self) -> Callable[[], TrainState]:
    """Starts to compile the program of the state before the first step; `init_seed` determines it.

    Returns:
      A function that waits for the program, and returns the state on the host.
    """
    # A CPU compiles many short loops, which run once: less optimization takes half of the time, and
    # gives the same bits. A level in the user's XLA_FLAGS comes first.
    level = "xla_backend_optimization_level"
    less = jax.default_backend() == "cpu" and level not in os.environ.get("XLA_FLAGS", "")
    options: Any = {level: 1} if less else {}

    def start(function: Callable, *arguments: Any) -> Callable[[], Any]:
      begin = functools.partial(parallel.start_compiling, jax.jit(function), arguments, options)
      program = self.once(f"init {function.__name__}", begin)
      return lambda: jax.device_get(program()(*arguments))

    key, cycle = jax.random.key(fields.seed_of(self.settings, "init_seed")), self.step.cycle
    if not cycle:
      return start(self.step.init, key)
    # Layers are stacked on the host: the compiler takes a minute over hundreds of concatenations.
    variables = start(self.step.initialize, key)
    begin = lambda: start(self.step.begin, stacked.stack(variables(), cycle))()  # noqa: E731
    return lambda: stacked.unstack(begin())

  def named_shapes(self) -> TrainState:
    """Returns the shapes and dtypes of the state in a checkpoint, where no layers are stacked."""
    return jax.eval_shape(stacked.unstack, self.shapes)

  def variables(self, state: TrainState) -> dict[str, Any]:
    """Returns the variables, by name, of the network in a state, without its adapters.

    The state, or its shapes, is not stacked. The parameters that it lacks are those of the base.
    """
    return {"params": lora.complete(state.params, self.constants), **state.model_state}

  def replicate(self, state: TrainState) -> TrainState:
    """Copies a state from the host to every device, and stacks the arrays of repeated layers."""
    return parallel.replicate(stacked.stack(state, self.step.cycle))

  def unreplicate(self, state: TrainState) -> TrainState:
    """Copies a state from the devices to the host, and unstacks the arrays of repeated layers."""
    return stacked.unstack(parallel.unreplicate(state))

  def batches(self) -> TrainBatches:
    """Returns this process's share of the training batches."""
    settings = self.settings
    batches = TrainBatches(
      self.examples.train,
      settings.data,
      transform=self.task.transform(train=True),
      batch_size=settings.batch_size,
      seed=fields.seed_of(settings, "data_seed"),
      process_index=jax.process_index(),
      process_count=jax.process_count(),
      with_parity="parity" in self.task.train_spec,
    )
    for name, expected in self.task.train_spec.items():
      spec = batches.spec.get(name)
      if spec != ArraySpec(expected.shape, expected.dtype.name):
        array = f"no {name}" if spec is None else f"{name} {spec.dtype} {spec.shape}"
        raise ConfigError(
          f"data.source={self.source.info.name!r}: the task takes {name} {expected.dtype}"
          f" {expected.shape}, but the examples have {array}."
        )
    return batches

  def implementations(
    self, describe: Callable[[list[Choice]], str] = describe_choices
  ) -> dict[str, str]:
    """Returns the implementation that each token mixer uses in training, by the mixer's path.

    The choice depends on the number of examples that a device processes at once. `describe` makes a
    text of the choices for one mixer's operations.
    """
    return {path: describe(picked) for path, picked in self._choices.items()}

  @functools.cached_property
  def _choices(self) -> dict[str, list[Choice]]:
    """Returns the choices of implementations by the path of each mixer."""
    settings, task = self.settings, self.task
    examples = settings.batch_size // jax.device_count() // settings.grad_accum_steps
    find = functools.partial(implementations, task.model, task.input_spec, examples, list)
    return self.once("implementations", find)

  def load_examples(self, role: str) -> Examples:
    """Returns a role's examples, in memory if they fit; `evaluation.limit` limits *validation*."""
    data, limit = self.settings.data, self.settings.evaluation.limit
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
    return describe_figures(self.task, figures, self.settings.evaluation.weights)

  def is_due(self, step: int, field: str) -> bool:
    """Returns whether an event whose period a field in `CADENCES` sets falls on `step`."""
    return durations.is_due(step, self.periods[field])

  def next_event(self, step: int, most: int) -> int:
    """Returns the next step that logs, evaluates, saves or ends the run, at most `step + most`."""
    last = min(step + most, self.total_steps)
    later = range(step + 1, last)
    return next((s for s in later if any(self.is_due(s, field) for field in CADENCES)), last)


def make_experiment(
  config: Mapping[str, Any], *, is_trial: bool = False, recorded: Mapping[str, Any] | None = None
) -> Experiment:
  """Makes the experiment of a config, and checks all that can be checked without compiling.

  The config of a teacher, or a prepared data set, may name Python code, which is imported only
  as `registry.trusting` allows.

  Args:
    config: The config that `get_config` returned, or its settings.
    is_trial: Whether the experiment will not be trained. If so, the weights of a teacher, which may
      not exist yet, are zeros, and packages of a tracker may be missing.
    recorded: The record of the data that the run made when it began, or None.
  """
  settings = settle.read(config)
  check_model(settings.model)
  settings = with_teacher_model(settings)
  _check_without_data(settings)
  tracking.check(settings, is_trial=is_trial)
  with spending("data"):
    source = settle.open_data(settings, recorded)
  with spending("data"), listing_all(source.all_roles(), settings.data.threads):
    settled = settle.settle(settings, source)
  task = settled.task
  examples = read_examples(task, source)
  settings = fit_to_examples(settled.settings, len(examples.train))
  steps_per_epoch = Fraction(len(examples.train), settings.batch_size)
  end = total = durations.to_steps(settings.duration, steps_per_epoch)
  if settings.stop_after != "":
    end = min(durations.to_steps(settings.stop_after, steps_per_epoch, "stop_after"), total)
  if end < 1:
    raise ConfigError(
      f"duration={settings.duration!r} is {total} steps, and stop_after={settings.stop_after!r} is"
      f" {end}; a run has at least one step."
    )
  if settings.schedule.name == "plateau":
    followed(task.figures, settings.schedule.get("mode", "min"))
  constants = blank_constants(task, settings)
  key = _find_key(settings, task, total, steps_per_epoch)

  def trace_step() -> tuple[Step, TrainState]:
    schedule = make_schedule(settings.schedule, total, steps_per_epoch)
    return _trace_step(settings, task, schedule, constants)

  step, shapes = sharing.once(lambda: (key, "step"), trace_step)
  if not is_trial:
    constants = constants | load_constants(task, settings, source.info)
    settings, base = load_base(task, settings)
    constants = constants | base
  rates = Rates.create(fields.seed_of(settings, "data_seed"), settings.learning_rate)
  periods = _find_periods(settings, steps_per_epoch)
  lengths = (steps_per_epoch, end, periods)
  step_parts = (step, shapes, rates, key, constants)
  return Experiment(settings, task, source, examples, *step_parts, *lengths)


def _find_key(settings: RunSettings, task: Task, *lengths: Any) -> str:
  """Returns a text of all on which a run's programs depend; `lengths` are numbers of steps."""
  flat, numbers = wd.flatten(settings), [x.shape for x in measurements(task)]
  is_ours = type(task).__module__.startswith("vitx.")  # another task may read any field
  names = [x for x in flat if not is_ours or UNSHAPED.isdisjoint((x, x.split(".")[0]))]
  return repr(({name: flat[name] for name in sorted(names)}, numbers, lengths, current_rule()))


def _trace_step(
  settings: RunSettings, task: Task, schedule: Schedule, constants: Any
) -> tuple[Step, TrainState]:
  """Returns the training step and the shapes of its state, after a trace that finds errors."""
  step, shapes = make_step(settings, task, schedule)
  step = dataclasses.replace(step, axis=parallel.AXIS)
  # The training pass has parts of its own (dropout, mixing): trace it too, which compiles nothing.
  batch = batch_shapes(task, settings.batch_size // jax.device_count())
  parallel.trace(step.traced, shapes, Rates.create(), constants, batch, jnp.int32(0))
  if settings.evaluation.attention_entropy:
    example = evaluation_shapes(task, 1)
    attention_entropy.check(settings, shapes.params, shapes.model_state, constants, example)
  return step, shapes


def halve_batch(settings: RunSettings, examples: int) -> int:
  """Returns the batch size of a run, which is smaller than `settings.batch_size` for little data.

  The batch size is halved until an epoch over `examples` examples has at least
  `settings.min_steps_per_epoch` steps, but not below `SMALLEST_BATCH`, and only while it stays a
  multiple of `settings.grad_accum_steps`. With 0 examples, the result is the smallest batch size
  that the run can get with any data.
  """
  least = settings.min_steps_per_epoch or 0
  batch, unit = settings.batch_size, 2 * settings.grad_accum_steps
  while batch >= 2 * fields.SMALLEST_BATCH and batch % unit == 0 and batch * least > examples:
    batch //= 2
  return batch


def find_multiple(settings: RunSettings) -> int:
  """Returns 2 if pairs of images are mixed, which takes an even number on each device, else 1."""
  return 2 if settings.augment.mixup or settings.augment.cutmix else 1


def fit_to_examples(settings: RunSettings, examples: int) -> RunSettings:
  """Returns settings whose batch size and durations fit the number of training examples.

  The batch size is halved if an epoch would have too few steps, see `halve_batch`. Durations such
  as "5%" or "30 epochs, at least 200 steps" become plain numbers of steps, see `durations.settle`.
  """
  batch = halve_batch(settings, examples)
  parallel.check_batch(batch, settings.grad_accum_steps, find_multiple(settings))
  if batch > examples:
    raise ConfigError(
      f"batch_size={batch} is larger than the {examples} training examples; lower it."
    )
  per_epoch = Fraction(examples, batch)
  duration = durations.settle(settings.duration, per_epoch)
  total = durations.to_steps(duration, per_epoch)
  paths = (*DURATIONS, *(f"schedule.{name}" for name in settings.schedule))
  changes = {
    path: durations.settle(fields.find(settings, path), per_epoch, total, path) for path in paths
  }
  return change(settings, {"batch_size": batch, "duration": duration, **changes})


def read_examples(task: Task, source: Source) -> Source:
  """Returns a source with the examples that a task trains and evaluates on, see `Task.examples`."""
  roles = {role: task.examples(source.role(role), train=role == "train") for role in ROLES}
  return dataclasses.replace(source, **roles)  # type: ignore[arg-type]


def make_step(settings: RunSettings, task: Task, schedule: Schedule) -> tuple[Step, TrainState]:
  """Returns a task's training step on one device, and the shapes of its state."""
  adapters = fields.find_lora(settings.model)
  with logged.collect_names() as log:
    # A new function each time, since JAX traces an old one only once.
    initialize = jax.jit(
      lambda key: lora.adapt(init_variables(task, key), adapters, settings.init_from_except, key),
      inline=True,
    )
    variables = jax.eval_shape(initialize, jax.random.key(0))
  interpolation = find_interpolation(settings)
  if interpolation and "batch_stats" in variables:
    raise ConfigError(
      "optimizer=schedule_free is evaluated at an average of the parameters, for which batch"
      " normalization has no statistics; choose another optimizer or network."
    )
  frozen, depth = find_frozen(settings, variables["params"]), None
  if adapters is not None:
    base = parameter_names(init_shapes(task)["params"])
    frozen |= {*base}.difference(parameter_names(variables["params"]))
    depth = count_blocks(base)  # some may have no adapter
  # Deep networks compile in a tenth of the time where the optimizer lets their layers be stacked.
  cycle = getattr(task.model, "layer_cycle", 0) if is_elementwise(settings) else 0
  step = Step(
    task=task,
    optimizer=make_optimizer(settings, stacked.first_cycle(variables["params"], cycle), depth),
    schedule=schedule,
    grad_accum_steps=settings.grad_accum_steps,
    ema_decay=settings.ema_decay,
    ema_warmup=settings.ema_warmup,
    interpolation=interpolation,
    half=settings.model.get("dtype", "float32") == "float16",
    cycle=cycle,
    frozen=frozen,
    logged=tuple(sorted(log)),
    initialize=initialize,
  )
  return step, jax.eval_shape(step.begin, variables)


def batch_shapes(task: Task, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of a training batch of `rows` examples."""
  index = jax.ShapeDtypeStruct((rows,), np.int32)
  return stack_shapes(task.train_spec, rows) | {"index": index}


def _check_without_data(settings: RunSettings) -> None:
  """Checks the fields that need no data, since to open the data set may take a minute."""
  parallel.check_batch(settings.batch_size, settings.grad_accum_steps, find_multiple(settings))
  find_optimizer(settings.optimizer)
  build(SCHEDULES, settings.schedule, "schedule", hidden=("run",))
  weights = settings.evaluation.weights
  if not weights or len(set(weights)) < len(weights):
    raise ConfigError(f"evaluation.weights={weights!r} must name ema, raw or both, each once.")
  if len(weights) > 1 and not settings.ema_decay and not find_interpolation(settings):
    raise ConfigError(f"evaluation.weights={weights!r} compares an average; set ema_decay.")
  # Half an epoch of the one step here is none.
  total = max(durations.to_steps(durations.settle(settings.duration, 1), 1), 1)
  every = {field: fields.find(settings, field) for field in CADENCES}
  changes = {field: durations.settle(value, 1, total, field) for field, value in every.items()}
  _find_periods(change(settings, changes), 1)


def _find_periods(settings: RunSettings, per_epoch: durations.Number) -> dict[str, Fraction]:
  """Returns the exact number of steps between two events of each field in `CADENCES`."""
  return {x: durations.to_period(fields.find(settings, x), per_epoch, x) for x in CADENCES}
