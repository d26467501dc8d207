"""Every field of a config that no named choice owns, declared once.

A field is one line of a dataclass: its name, what it takes, its default. `declare` adds the names
by which timm, big_vision or Hugging Face know it, and our own old ones; error messages point from
them to the field. What the field means is a sentence of the class's docstring. The default config,
the checks, typed overrides and `vitx config --explain` follow from these lines.

The fields of a named choice, such as `optimizer` or `model.token_mixer`, are declared by the class
or function that the name stands for.
"""

# ruff: noqa: RUF009 (`declare` makes a dataclass field)

import dataclasses
import functools
import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal, TypeVar

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from vitx.config.checks import (
  ChoiceTable,
  Finite,
  NonNegative,
  NonNegativeInt,
  Positive,
  PositiveInt,
  Probability,
  Range,
  Rate,
  Seed,
  Share,
  base_types,
  check_fields,
  check_pattern,
  check_value,
)
from vitx.config.errors import ConfigError, nearest

Section = TypeVar("Section")
Group = Mapping[str, Any]  # of fields that are not declared here
Duration = str | int
Side = Annotated[int, Range("[1, 65536]")]
Size = Side | tuple[Side, Side]  # a square's side, or (height, width)
ResizeMode = Literal["center", "squash", "random"]
Interpolation = Literal["nearest", "bilinear", "bicubic"]
# Of the host, with Pillow; "random" draws one of the two for each crop.
HostInterpolation = Literal["bilinear", "bicubic", "random"]
KeepMode = Literal["auto", "always", "never"]
# Named choices, by the tables of what may be chosen.
SourceName = Annotated[str, ChoiceTable("vitx.data.sources:SOURCES")]
ModelChoice = Annotated[Group, ChoiceTable("vitx.models:MODELS")]
TaskChoice = Annotated[Group, ChoiceTable("vitx.tasks:TASKS")]
OptimizerChoice = Annotated[Group, ChoiceTable("vitx.training.optim.optimizers:OPTIMIZERS")]
ScheduleChoice = Annotated[Group, ChoiceTable("vitx.training.optim.schedules:SCHEDULES")]
TrackingChoice = Annotated[Group, ChoiceTable("vitx.training.record.trackers:TRACKERS")]
SEEDS = ("init_seed", "data_seed", "graph_seed")


def declare(default: Any, *names: str, **paths: str) -> Any:
  """Declares a default together with the names by which others know the field.

  Args:
    default: the default; that of a named choice is a dict.
    *names: other names of the field.
    **paths: other names of what lies below the field, each with that path, such as ".warmup".
  """
  metadata = {"aliases": dict.fromkeys(names, "") | paths}
  if isinstance(default, dict):
    return dataclasses.field(default_factory=default.copy, metadata=metadata)
  return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SplitSettings:
  """Which splits of the source play the three roles; "" is found from the source.

  Attributes:
    train: the split that the model learns from.
    validation: the split that chooses the best checkpoint.
    test: the split that is evaluated once, at the end.
  """

  train: str | None = declare("", "train_split")
  validation: str | None = declare("", "select", "val", "val_split")
  test: str | None = declare("", "report", "test_split")


@dataclass(frozen=True)
class DataSettings:
  """Which examples train, how they are read, and which size of an image the host keeps.

  Attributes:
    source: a TFDS set, `KIND:REST` of `vitx.data.sources.SOURCES`, or your own `module:function`.
    data_dir: TFDS directory; None is $TFDS_DATA_DIR, else ~/tensorflow_datasets.
    validation: the share carved from train for validation if no split is to spare.
    validation_choice: a function that chooses them, from the examples of train to booleans (n,): a
      name of `vitx.data.splits.CHOICES` or your own `module:function`; None draws the share.
    fraction: the part of train that is used, class-balanced where there are classes.
    repeats: how often an example comes in a row, differently augmented (Hoffer et al. 2020); an
      epoch of as many examples has as much fewer different ones.
    channels: 1 (gray), 3 (RGB) or 4 (RGBA), for sources whose images have no number of their own;
      a source of your own may have any number.
    value_range: the values of black and white in images of more than 8 bits; None is what their
      format states.
    image_size: what the model sees, in pixels: the side of a square or (height, width); None is the
      source's own.
    default_image_size: that size for sources whose images vary in size.
    decode_size: the size that the host keeps, in the same form; None is enough for the above.
    resize_mode: how an image gets that size, see `vitx.data.images.resizing.ResizeImages`.
    interpolation: how the host resizes; random draws bilinear or bicubic for each random crop.
    memory: whether examples are read once and kept.
    device: whether those that are kept lie in the devices' memory too; auto is on accelerators.
    threads: how many threads read and decode.
    on_unreadable: refuse (None, too) examples that cannot be read, all named; or skip them, found
      and told before training.
    mean: the mean per channel, of pixels in 0..1; None is the source's.
    std: the standard deviation per channel, of pixels in 0..1; None is the source's.
  """

  source: SourceName = declare("digits", "dataset_name")
  data_dir: str | None = declare(None, "data_path")
  splits: SplitSettings = SplitSettings()
  validation: Annotated[float, Range("(0, 1)")] = declare(0.1, "select", "val_fraction")
  validation_choice: Annotated[str, ChoiceTable("vitx.data.splits:CHOICES")] | None = None
  fraction: Share = 1.0
  repeats: PositiveInt = declare(1, "aug_repeats")
  channels: Annotated[int, Range("[1, 4096]")] = declare(3, "in_chans", "num_channels")
  value_range: tuple[Finite, Finite] | None = None
  image_size: Size | None = declare(None, "img_size", "input_size", "resolution", "res")
  default_image_size: Size | None = declare(None, "varied_size")
  decode_size: Size | None = declare(None, "stored_size")
  resize_mode: ResizeMode = declare("center", "fit", "crop_mode")
  interpolation: HostInterpolation = declare("bilinear", "train_interpolation")
  memory: KeepMode = declare("auto", "cache")
  device: KeepMode = "auto"
  threads: Annotated[int, Range("[1, 1024]")] = declare(4, "workers", "num_workers")
  on_unreadable: Literal["refuse", "skip"] | None = None
  mean: tuple[Finite, ...] | None = declare(None, "image_mean")
  std: tuple[Positive, ...] | None = declare(None, "image_std")


@dataclass(frozen=True)
class AugmentSettings:
  """What is done to a training image; each field is off by default.

  Attributes:
    pad_crop: pixels of zero padding before a random crop back to the image size.
    random_resized_crop: (smallest, largest) share of the area; () is off. Not with pad_crop.
    hflip: probability of a flip from left to right.
    vflip: probability of a flip upside down.
    rotate: largest angle in degrees, either way.
    color_jitter: (brightness, contrast, saturation, hue); () is off.
    randaugment: (number of operations, magnitude 0..10); () is off. Not with autoaugment.
    randaugment_probability: the probability with which each of its operations is applied.
    randaugment_std: standard deviation of the magnitude, drawn for each operation.
    randaugment_operations: the paper's 14, or timm's 15 whose effect increases with the magnitude.
    autoaugment: whether the CIFAR policy is applied.
    random_erasing: probability of erasing a box.
    random_erasing_fill: zero (the mean), or noise, normal for each pixel, in a box of timm's.
    mixup: alpha; 0 is off.
    cutmix: alpha; 0 is off. With mixup, each pair draws one of the two.
    mixing: whether each pair draws its share (and which of the two), or the batch one for all.
    interpolation: how every operation samples; random draws bilinear or bicubic each time.
  """

  pad_crop: NonNegativeInt = declare(0, "padding")
  random_resized_crop: tuple[Share, ...] = declare((), "rrc", "scale")
  hflip: Probability = declare(0.0, "flip_lr", "horizontal_flip")
  vflip: Probability = declare(0.0, "flip_ud", "vertical_flip")
  rotate: Annotated[float, Range("[0, 180]")] = declare(0.0, "rotation", "degrees")
  color_jitter: tuple[NonNegative, ...] = declare((), "jitter")
  randaugment: tuple[NonNegative, ...] = declare((), "aa", "rand_augment", "randaug")
  randaugment_probability: Probability = 1.0
  randaugment_std: NonNegative = 0.0
  randaugment_operations: Literal["paper", "increasing"] = "paper"
  autoaugment: bool = declare(False, "auto_augment")
  random_erasing: Probability = declare(0.0, "reprob", "erasing")
  random_erasing_fill: Literal["zero", "noise"] = declare("zero", "remode")
  mixup: NonNegative = declare(0.0, "mixup_alpha")
  cutmix: NonNegative = declare(0.0, "cutmix_alpha")
  mixing: Literal["pair", "batch"] = declare("pair", "mixup_mode")
  interpolation: Literal["bilinear", "nearest", "bicubic", "random"] = "bilinear"


@dataclass(frozen=True)
class EvaluationSettings:
  """When and how a split is evaluated.

  Attributes:
    every: how often validation is evaluated.
    batch_size: examples of a batch over all devices; None means the training batch.
    limit: examples of validation, spread evenly over it; None means all.
    attention_entropy: examples of validation from which rows of kind "train" state the entropy of
      attention; 0 is off.
    crop_ratio: image size / side to which the image is resized before its center is cut out.
    interpolation: how the image is resized.
    on_test: whether test is evaluated each time, too; it chooses nothing.
    weights: ema, raw or both are evaluated; the first chooses the best.
  """

  every: Duration = declare("1 epochs", "eval_every", "eval_steps")
  batch_size: PositiveInt | None = declare(None, "eval_batch_size", "per_device_eval_batch_size")
  limit: PositiveInt | None = None
  attention_entropy: NonNegativeInt = 0
  crop_ratio: Share = declare(1.0, "crop_pct")
  interpolation: Interpolation = "bilinear"
  on_test: bool = False
  weights: tuple[Literal["ema", "raw"], ...] = ("ema",)


@dataclass(frozen=True)
class CheckpointSettings:
  """When the state is saved.

  Attributes:
    every: how often the state is saved.
    keep: how many checkpoints are kept beside the best.
  """

  every: Duration = declare("1 epochs", "save_every", "save_steps", "ckpt_steps")
  keep: PositiveInt = declare(2, "checkpoint_hist", "save_total_limit")


@dataclass(frozen=True)
class RunSettings:
  """A run. Durations are texts: "300 steps", "2.5 epochs".

  Attributes:
    seed: the seed that the others follow from unless they are set.
    init_seed: the seed of the parameters; None means seed.
    data_seed: the seed of order, splits, augmentation and dropout; None means seed.
    graph_seed: the seed of random attention graphs; None means seed.
    batch_size: examples of a step over all devices and processes.
    grad_accum_steps: micro-batches per step.
    steps_per_dispatch: the most steps of one call, with equal bits; None is 1 to 16 by their FLOPs.
    duration: how long the run is, and its schedule.
    stop_after: where the run ends before that; "" is with the duration.
    learning_rate: the schedule's peak.
    weight_decay_mask: the parameters that decay.
    grad_clip_norm: the global norm to which a gradient is clipped; None means not clipped.
    layer_decay: learning rate of a block relative to the next one.
    freeze: patterns of parameter names such as "block_0/.*"; their statistics stay too.
    ema_decay: decay of the moving average of parameters; 0 is off.
    ema_warmup: whether the average is short at first.
    log_every: how often a row of kind "train" is written.
    init_from: a workdir, file of weights or hf:NAME that a new run starts from.
    init_from_except: regular expressions of names that need not fit such a file.
    phases: what each of several runs changes, by its name; empty is one run.
    deterministic: whether a GPU computes repeatable bits, slower.
  """

  seed: Seed = declare(0, "rng_seed", "random_seed")
  init_seed: Seed | None = None
  data_seed: Seed | None = None
  graph_seed: Seed | None = None
  model: ModelChoice = declare(
    {"name": "vit"},
    "arch",
    initialisation=".initialization",
    patch_size=".stem.patch",
    grad_checkpointing=".remat",
    mlp_ratio=".mlp_dim",
    **dict.fromkeys(("drop_path", "drop_path_rate"), ".stochastic_depth"),
    **dict.fromkeys(("drop", "drop_rate"), ".dropout"),
    **dict.fromkeys(("embed_dim", "hidden_size"), ".width"),
    **dict.fromkeys(("num_layers", "num_hidden_layers"), ".depth"),
    **dict.fromkeys(("heads", "num_attention_heads"), ".num_heads"),
  )
  task: TaskChoice = declare(
    {"name": "classification", "label_smoothing": 0.0},
    smoothing=".label_smoothing",
    label_smoothing=".label_smoothing",
  )
  data: DataSettings = DataSettings()
  augment: AugmentSettings = AugmentSettings()
  evaluation: EvaluationSettings = EvaluationSettings()
  batch_size: PositiveInt = declare(128, "bs", "train_batch_size", "per_device_train_batch_size")
  grad_accum_steps: PositiveInt = declare(1, "accumulate", "gradient_accumulation_steps")
  steps_per_dispatch: PositiveInt | None = None
  duration: Duration = declare("10 epochs", "epochs", "num_train_epochs", "max_steps")
  stop_after: Duration = ""
  learning_rate: NonNegative = declare(1e-3, "lr", "base_lr", "peak_lr")
  optimizer: OptimizerChoice = declare(
    {"name": "adamw", "weight_decay": 0.05},
    "opt",
    "optim",
    wd=".weight_decay",
    weight_decay=".weight_decay",
    momentum=".momentum",
  )
  schedule: ScheduleChoice = declare(
    {"name": "cosine", "warmup": "0 steps"},
    "sched",
    "lr_scheduler_type",
    **dict.fromkeys(("warmup", "warmup_steps", "warmup_epochs"), ".warmup"),
  )
  weight_decay_mask: Literal["matrices", "rank", "rank_but_bases", "tensors", "all"] = declare(
    "matrices", "decay"
  )
  grad_clip_norm: Positive | None = declare(None, "clip_norm", "clip_grad", "max_grad_norm")
  layer_decay: Share = 1.0
  freeze: tuple[str, ...] = ()
  ema_decay: Rate = declare(0.0, "ema", "model_ema", "model_ema_decay")
  ema_warmup: bool = declare(True, "model_ema_warmup")
  log_every: Duration = declare("50 steps", "log_interval", "logging_steps", "log_training_steps")
  checkpoint: CheckpointSettings = CheckpointSettings()
  init_from: str | None = declare("", "pretrained", "initial_checkpoint", "model_init", "finetune")
  init_from_except: tuple[str, ...] = ()
  phases: Group = declare({})
  tracking: TrackingChoice = declare(
    {"name": "none"}, "report_to", tensorboard="=tensorboard", wandb="=wandb"
  )
  deterministic: bool = False


def walk(section: type | None = None, prefix: str = "") -> Iterator[tuple[str, type, Any]]:
  """Yields every declared field in order: its path, the class that declares it, its declaration."""
  section = section or RunSettings
  for each in dataclasses.fields(section):
    if dataclasses.is_dataclass(each.type):
      yield from walk(each.type, f"{prefix}{each.name}.")  # type: ignore[arg-type]
    else:
      yield f"{prefix}{each.name}", section, each


def declarations() -> dict[str, Any]:
  """Returns the declaration of every field by its path."""
  return _declarations(RunSettings)


@functools.cache
def _declarations(settings: type) -> dict[str, Any]:
  return {path: each for path, _, each in walk(settings)}


def find(config: Mapping[str, Any], path: str) -> Any:
  """Returns the value at a dotted path of a config; `MISSING` where there is none."""
  node: Any = config
  for key in path.split("."):
    if not hasattr(node, "keys") or key not in node:
      return MISSING
    node = node[key]
  return node


def default_of(path: str) -> Any:
  """Returns the default of a field; None for a field that is not declared here."""
  each = declarations().get(path)
  if each is None:
    return None
  return each.default_factory() if each.default is MISSING else each.default


def default_config() -> ConfigDict:
  """Returns every field with its default, of its type."""
  config = ConfigDict()
  for path, each in declarations().items():
    *parents, last = path.split(".")
    node = config
    for parent in parents:
      node[parent] = node.get(parent) or ConfigDict()
      node = node[parent]
    default = default_of(path)
    if default is None:
      kinds = base_types(each.type) - {type(None)}
      default = placeholder(kinds.pop() if len(kinds) == 1 else object)
    node[last] = ConfigDict(default) if isinstance(default, dict) else default
  return config.lock()


def named_choices() -> dict[str, ChoiceTable]:
  """Returns the fields that hold a named choice, each with its table."""
  return {
    path: note
    for path, each in declarations().items()
    for note in getattr(each.type, "__metadata__", ())
    if base_types(each.type) == {Mapping}
  }


def suggest(path: str, valid: Iterable[str]) -> str:
  """Returns " Did you mean 'x'?" for a name that is no field, or "" if nothing is meant.

  Args:
    path: the name as it was given, such as "lr" or "data.fit"; where others know a field by the
      last part of it, that field is meant.
    valid: the fields that stand in its place, of which the nearest is meant otherwise.
  """
  known = {
    f"{field.removesuffix(each.name)}{alias}": f"{field}{below}"
    for field, each in declarations().items()
    for alias, below in each.metadata.get("aliases", {}).items()
  }
  name = path.rpartition(".")[2]
  others = (field for alias, field in known.items() if alias.rpartition(".")[2] == name)
  meant = known.get(path) or next(others, None)
  return f" Did you mean {meant!r}?" if meant else nearest(name, valid)


def read_fields(cls: type[Section], given: Mapping[str, Any], section: str = "data") -> Section:
  """Returns the fields that a dataclass declares from a section of a config.

  Args:
    cls: a dataclass whose annotations say what each field takes.
    given: the section, with any other fields beside these; those left out have their defaults.
    section: its name, for errors.

  Raises:
    ConfigError: a value of another type or out of range.
  """
  names = [each.name for each in dataclasses.fields(cls)]  # type: ignore[arg-type]
  own = {name: given[name] for name in names if name in given}
  check_fields(cls, own, section)
  return cls(**own)


def check_is_config(config: Any) -> None:
  """Raises ConfigError unless a config is a ConfigDict that makes the choices of a run."""
  if not isinstance(config, ConfigDict):
    raise ConfigError(
      f"config={config!r:.60} must be a ConfigDict, such as vitx.load_config('digits') returns"
    )
  for name in ("data", *named_choices()):
    if name not in config:
      raise ConfigError(
        f"config has no {name!r}; begin with vitx.config.default_config(), which has every field"
      )


def check_config(config: ConfigDict) -> None:
  """Holds a config to the types and ranges of its fields, before anything is opened.

  The fields of named choices are checked where those are built.

  Raises:
    ConfigError: naming the field, in one line.
  """
  check_is_config(config)
  choices = named_choices()
  for name in choices:
    choice = config[name]
    if not isinstance(choice, str) and "name" not in getattr(choice, "keys", tuple)():
      raise ConfigError(
        f"{name}={choice!r} is no named choice; write {name}=NAME, and its fields as"
        f" {name}.FIELD=VALUE"
      )
  for path, each in declarations().items():
    value = find(config, path)
    if value is not MISSING and path not in choices:
      check_value(value, path, each.type)
  for pattern in config["init_from_except"]:
    check_pattern(pattern, "init_from_except")
  importlib.import_module("vitx.tasks").task_class(config["task"])
