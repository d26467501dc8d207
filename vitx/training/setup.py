"""From a config to the objects that train; all checks come before compiling."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vitx.analysis.implementations import implementations
from vitx.checkpoints.store import check_keep
from vitx.data.batches import TrainBatches, keep
from vitx.data.images.augment import make_eval_preprocess, make_train_augment
from vitx.data.images.decode import stored_size
from vitx.data.images.statistics import statistics
from vitx.data.sources import Examples, Source, open_source
from vitx.errors import ConfigError
from vitx.models import model_from_config, resolve_model
from vitx.registry import build
from vitx.tasks.classification import TASKS, Task
from vitx.training import durations, parallel
from vitx.training.optimizers import make_optimizer
from vitx.training.schedules import make_schedule
from vitx.training.train_step import Step, TrainState

SEEDS = ("init_seed", "data_seed", "graph_seed")


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A config made real.

  Attributes:
    config: resolved: every field that follows from the source is set.
    source: the data.
    step: the training step, for the devices of this run.
    shapes: the state's shapes and dtypes, before replication.
    steps_per_epoch: batches per pass over *train*; not an integer in general.
    total_steps: where the run ends.
  """

  config: ConfigDict
  source: Source
  step: Step
  shapes: TrainState
  steps_per_epoch: Fraction
  total_steps: int

  @property
  def task(self) -> Task:
    """Model, augmentation and loss."""
    return self.step.task

  @property
  def tokens(self) -> int | None:
    """N, from the position table where the model has one."""
    table = self.shapes.params.get("posemb", {}).get("table")
    return None if table is None else table.shape[1]

  def init_state(self) -> TrainState:
    """The state before the first step, a function of `config.init_seed`."""
    key = jax.random.key(self.config.init_seed)
    return jax.jit(self.step.init)(key, _example_batch(self.config))

  def batches(self) -> TrainBatches:
    """This process's share of the training batches."""
    config = self.config
    return TrainBatches(
      self.source.train,
      batch_size=config.batch_size,
      seed=config.data_seed,
      stored_size=config.data.stored_size,
      fit=config.data.fit,
      memory=config.data.memory,
      threads=config.data.threads,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
    )

  def implementations(self) -> dict[str, str]:
    """Which implementation each token mixer runs, by its place in the network."""
    size, channels = self.config.data.image_size, self.config.data.channels
    return implementations(model_from_config(self.config.model), (1, size, size, channels))

  def kept(self, role: str) -> Examples:
    """The examples of a role that is read often: decoded once, if memory allows."""
    data = self.config.data
    fit = "center" if data.fit == "random" else data.fit
    return keep(
      self.source.role(role),
      stored_size=data.stored_size,
      fit=fit,
      memory=data.memory,
      threads=data.threads,
    )


def resolve(config: ConfigDict, source: Source) -> ConfigDict:
  """Fills in what follows from other fields: seeds, classes, image size, statistics.

  Raises:
    ConfigError: a field contradicts the source.
  """
  config = config.copy_and_resolve_references()
  with config.unlocked():
    for seed in SEEDS:
      if config[seed] is None:
        config[seed] = config.seed
    if config.data.image_size is None:
      config.data.image_size = _own_size(source, config.data.get("varied_size"))
    config.data.stored_size = stored_size(config.data, source, config.evaluation.crop_ratio)
    config.data.channels = source.channels
    config.data.mean, config.data.std = statistics(config.data, source)
    given = config.model.get("num_classes")
    if given not in (None, source.num_classes):
      raise ConfigError(
        f"model.num_classes={given}, but the source {source.name!r} has {source.num_classes}"
        " classes; leave it out, it follows the source"
      )
    config.model.num_classes = source.num_classes
    config.model = ConfigDict(resolve_model(config.model.to_dict(), seed=config.graph_seed))
  return config


def make_task(config: ConfigDict) -> Task:
  """The task of a resolved config; it needs no data."""
  data = config.data
  settings = dict(config.task)
  smoothing = settings.pop("label_smoothing", 0.0)
  task = build(
    TASKS,
    settings,
    "task",
    hidden=("model", "augment", "preprocess", "num_classes"),
  )
  return task(
    model=model_from_config(config.model),
    augment=make_train_augment(
      config.augment,
      image_size=data.image_size,
      mean=data.mean,
      std=data.std,
      num_classes=config.model.num_classes,
      label_smoothing=smoothing,
    ),
    preprocess=make_eval_preprocess(
      config.evaluation, image_size=data.image_size, mean=data.mean, std=data.std
    ),
    num_classes=config.model.num_classes,
  )


def make_experiment(config: ConfigDict) -> Experiment:
  """Opens the source, resolves the config and checks all that can be checked without compiling.

  Raises:
    ConfigError: naming the field, the value and the fix.
  """
  seed = config.seed if config.data_seed is None else config.data_seed
  source = open_source(config.data, seed)
  config = resolve(config, source)
  _check(config, source)
  steps_per_epoch = Fraction(len(source.train), config.batch_size)
  total = durations.steps(config.duration, steps_per_epoch, "duration")
  schedule = make_schedule(config.schedule, config.learning_rate, total, steps_per_epoch)
  step, shapes = make_step(config, schedule)
  # The training pass has parts of its own (dropout, mixing): trace it too, which compiles nothing.
  jax.eval_shape(step.train, shapes, batch_shapes(config, config.batch_size // jax.device_count()))
  step = dataclasses.replace(step, axis=parallel.AXIS)
  return Experiment(config, source, step, shapes, steps_per_epoch, total)


def make_step(
  config: ConfigDict, schedule: Callable[[jax.Array], jax.Array]
) -> tuple[Step, TrainState]:
  """The training step of a resolved config on one device, and its state's shapes; needs no data."""
  task = make_task(config)
  batch = _example_batch(config)
  variables = jax.eval_shape(task.init, jax.random.key(0), batch)
  step = Step(
    task=task,
    optimizer=make_optimizer(config, variables["params"]),
    schedule=schedule,
    seed=config.data_seed,
    accumulate=config.accumulate,
    ema=config.ema,
    half=config.model.get("dtype", "float32") == "float16",
  )
  return step, jax.eval_shape(step.init, jax.random.key(0), batch)


def batch_shapes(config: ConfigDict, rows: int, devices: int = 1) -> dict[str, Any]:
  """The training batch of some devices as shapes: `rows` in all, and a flag to stop for each."""
  index = {"index": np.zeros((rows,), np.int32), "stop": np.zeros((devices,), np.int32)}
  batch = _example_batch(config, rows) | index
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)


def _check(config: ConfigDict, source: Source) -> None:
  parallel.check_batch(config.batch_size, config.accumulate)
  if config.batch_size > len(source.train):
    raise ConfigError(
      f"batch_size={config.batch_size} is larger than the {len(source.train)} training examples of"
      f" {source.name!r}"
    )
  if (
    durations.steps(config.duration, Fraction(len(source.train), config.batch_size), "duration") < 1
  ):
    raise ConfigError(f"duration={config.duration!r} has no step; lengthen it")
  if config.evaluation.batch_size is not None and config.evaluation.batch_size < 1:
    raise ConfigError(f"evaluation.batch_size={config.evaluation.batch_size} must be at least 1")
  if not 0 <= config.ema < 1:
    raise ConfigError(f"ema={config.ema} must lie in [0, 1); 0 turns it off")
  check_keep(config.checkpoint.keep)
  for field, value in (
    ("log_every", config.log_every),
    ("evaluation.every", config.evaluation.every),
    ("checkpoint.every", config.checkpoint.every),
  ):
    durations.due(1, value, Fraction(len(source.train), config.batch_size), field)


def _own_size(source: Source, varied_size: int | None) -> int:
  size = source.image_size
  if varied_size is not None and (size is None or size[0] != size[1]):
    return varied_size
  if size is None or size[0] != size[1]:
    what = "images of varying size" if size is None else f"images of {size[0]} x {size[1]} pixels"
    raise ConfigError(
      f"data.image_size is not set and {source.name!r} has {what}; set it, e.g. 224"
    )
  return size[0]


def _example_batch(config: ConfigDict, rows: int = 1) -> dict[str, Any]:
  size, channels = config.data.stored_size, config.data.channels
  return {
    "image": np.zeros((rows, size, size, channels), np.uint8),
    "label": np.zeros((rows,), np.int32),
  }
