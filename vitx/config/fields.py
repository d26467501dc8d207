"""Declares the fields of a config.

A field is one line of a dataclass: its name, its type and its default. The docstring of the
dataclass explains each field in one sentence. The default config, the checks, the parsing of
overrides and `vitx config --explain` are derived from these declarations. `declare` adds the names
that timm, big_vision or Hugging Face use for a field, and the field's former names in vitx; an
error message for such a name suggests the field.

A named choice is a field such as `optimizer` or `model.token_mixer`, whose value is a name with
fields of its own. The class or function that the name refers to declares these fields.

A recipe writes a `ConfigDict`, which can be changed. `read_settings` checks it and returns the
settings, a `RunSettings` that cannot; `vitx.config.settings` says how.
"""

# ruff: noqa: RUF009 (`declare` makes a dataclass field)

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from vitx.config.checks import (
  Finite,
  NonNegative,
  NonNegativeInt,
  Positive,
  PositiveInt,
  Probability,
  Range,
  Rate,
  Registered,
  Seed,
  Share,
  base_types,
)
from vitx.config.errors import ConfigError, nearest
from vitx.config.settings import Group, Settings, change, read_fields

Duration = str | int
Side = Annotated[int, Range("[1, 65536]")]
Size = Side | tuple[Side, Side]  # a square's side, or (height, width)
ResizeMode = Literal["center", "squash", "random"]
Interpolation = Literal["nearest", "bilinear", "bicubic"]
# The host resizes with Pillow; "random" draws bilinear or bicubic for each crop.
HostInterpolation = Literal["bilinear", "bicubic", "random"]
KeepMode = Literal["auto", "always", "never"]
# The registry knows the tables of names.
RegisteredName = Annotated[str, Registered()]
NamedChoice = Annotated[Group, Registered()]
SMALLEST_BATCH = 16  # min_steps_per_epoch halves no batch below this size
LORA = "model.lora"  # the section of `LoraSettings`, which a config need not have
SEEDS = ("init_seed", "data_seed", "graph_seed")


def declare(default: Any, *names: str, **paths: str) -> Any:
  """Returns a dataclass field with a default and with other names, for which errors suggest it.

  Args:
    default: The default value; a dict for a named choice.
    *names: Other names for the field.
    **paths: Other names for fields of a named choice; the value of each is the path below this
      field, such as ".warmup".
  """
  metadata = {"aliases": dict.fromkeys(names, "") | paths}
  if isinstance(default, dict):
    return dataclasses.field(default_factory=lambda: Group(default), metadata=metadata)
  return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SplitSettings(Settings):
  """The splits of the data source that serve as train, validation and test.

  Attributes:
    train: The split that the model learns from; "" is the split with the usual name.
    validation: The split that chooses the best checkpoint; "" is the split with the usual name, or
      else a part of train.
    test: The split that is evaluated once, at the end; "" is the split with the usual name, or else
      the validation split, or else a part of train.
  """

  train: str | None = declare("", "train_split")
  validation: str | None = declare("", "select", "val", "val_split")
  test: str | None = declare("", "report", "test_split")


@dataclass(frozen=True)
class DataSettings(Settings):
  """The data set, its splits, and the reading and resizing of its examples.

  Attributes:
    source: The name of a TFDS set, `folder:PATH`, `csv:FILE`, `hf:NAME`, `bytes:FILE`,
      `audio:FOLDER`, or your own `module:function`.
    data_dir: The TFDS directory; None is $TFDS_DATA_DIR, else ~/tensorflow_datasets.
    validation: The share of train that becomes validation if the source has no split for it.
    validation_choice: The function that chooses validation from the n examples of train, by
      returning booleans (n,): a name in `vitx.data.splits.CHOICES` or your own `module:function`;
      None draws at random.
    calibration: The share of train that is set aside to calibrate prediction sets, see `vitx
      predict --coverage`. The runs of all seeds and folds have it in common.
    folds: The number of parts into which train is divided for cross-validation, class-balanced
      where there are classes; None uses the source's own splits.
    fold: The number, counted from 0, of the part that serves as test; the other parts are divided
      into train and validation.
    groups: The groups of examples that stay together in one role and one fold, such as the frames
      of a video: a column of a table, or a regular expression. Examples are of one group if the
      expression finds equal texts in their names, or in its parentheses if it has any; None divides
      examples one by one.
    exclude: A CSV file whose column "name" names examples that are left out of train and of the
      roles that are taken from it, such as a file of `vitx audit`; None leaves out none.
    fraction: The share of train that is used, class-balanced where there are classes.
    repeats: The number of differently augmented copies of each example, which follow one another
      (Hoffer et al. 2020); an epoch keeps its length, so it has fewer different examples.
    label_columns: The columns with the labels of a CSV table; None is every column except "split",
      that in groups, and the first, which names the files. For `hf:` and TFDS, the column of the
      class; None is the only one of the kind ClassLabel. () reads no labels.
    label_kind: The kind of a table's labels: class (or None) for one class per image, classes for
      any number of classes per image, number for numbers.
    sampling: The frequency of classes in training: balanced draws each class equally often, so it
      repeats examples of small classes; None draws each example once in an epoch.
    channels: The number of channels where the source does not fix it: 1 (gray), 3 (RGB) or 4
      (RGBA); your own source may have any number.
    value_range: The values of black and white in images of more than 8 bits; None takes the range
      that the file states, or the whole range of 16 bits.
    image_size: The size of the model's input in pixels: the side of a square or (height, width);
      None is the source's own size.
    default_image_size: The image_size for sources whose images vary in size.
    decode_size: The size to which the host resizes images: the side of a square or (height, width);
      None is the source's own size, or image_size / evaluation.crop_ratio if its images vary.
    resize_mode: The way of resizing to decode_size: center cuts the middle out, squash changes the
      aspect ratio, random crops at random.
    interpolation: The interpolation of the host's resizing; random draws bilinear or bicubic for
      each random crop.
    memory: Whether examples are read once and kept in memory; auto does so if they take at most
      half of the free memory.
    device: Whether examples kept in memory are copied to the devices; auto does so on accelerators,
      if they take at most a tenth of a device's memory.
    threads: The number of threads that read and decode.
    on_unreadable: The treatment of examples that cannot be read: refuse (or None) raises an error
      that names them; skip finds them before training, reports them and leaves them out.
    mean: The mean per channel, for pixels in 0..1; None is the source's mean.
    std: The standard deviation per channel, for pixels in 0..1; None is the source's.
  """

  source: RegisteredName = declare("digits", "dataset_name")
  data_dir: str | None = declare(None, "data_path")
  splits: SplitSettings = SplitSettings()
  validation: Annotated[float, Range("(0, 1)")] = declare(0.1, "select", "val_fraction")
  validation_choice: RegisteredName | None = None
  calibration: Annotated[float, Range("[0, 1)")] = declare(0.0, "conformal")
  folds: Annotated[int, Range("[2, 1000]")] | None = declare(None, "n_splits", "num_folds")
  fold: Annotated[int, Range("[0, 999]")] | None = None
  groups: str | None = declare(None, "group", "group_by", "group_column")
  exclude: str | None = None
  fraction: Share = 1.0
  repeats: PositiveInt = declare(1, "aug_repeats")
  label_columns: tuple[str, ...] | None = declare(None, "label_column", "target_column")
  label_kind: Literal["class", "classes", "number"] | None = None
  sampling: Literal["balanced"] | None = declare(None, "sampler", "class_balanced", "oversampling")
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
  mean: tuple[Probability, ...] | None = declare(None, "image_mean")
  std: tuple[Share, ...] | None = declare(None, "image_std")


@dataclass(frozen=True)
class AugmentSettings(Settings):
  """Augmentation of training images; every operation is off by default.

  Attributes:
    pad_crop: The zero padding in pixels before a random crop back to the image size.
    random_resized_crop: The (smallest, largest) share of the image's area in the crop; () is off.
      It excludes pad_crop.
    hflip: The probability of a flip from left to right.
    alternate_flips: Whether an image is flipped from left to right in every other epoch; the first
      epoch is drawn (Jordan 2024, section 3.6). It excludes hflip.
    vflip: The probability of a flip upside down.
    rotate: The largest angle in degrees, in either direction.
    color_jitter: The amounts of (brightness, contrast, saturation, hue); () is off.
    randaugment: The (number of operations, magnitude 0..10); () is off. It excludes autoaugment.
    randaugment_probability: The probability that a RandAugment operation is applied.
    randaugment_std: The standard deviation of the magnitude, which is drawn for each operation.
    randaugment_operations: The set of operations: the paper's 14, or timm's 15 whose effect
      increases with the magnitude.
    autoaugment: Whether the CIFAR policy is applied.
    random_erasing: The probability of erasing a box.
    random_erasing_fill: The content of the erased box: zero (the mean of the normalized images) or
      noise (normal noise for each pixel, in a box that is drawn as in timm).
    mixup: The alpha of mixup; 0 is off.
    cutmix: The alpha of CutMix; 0 is off. If mixup is on too, one of the two is drawn.
    mixing: The images that share a draw of mixup or CutMix and of its weight: each pair of images
      or the whole batch.
    interpolation: The interpolation of every operation; random draws bilinear or bicubic each time.
  """

  pad_crop: NonNegativeInt = declare(0, "padding")
  random_resized_crop: tuple[Share, ...] = declare((), "rrc", "scale")
  hflip: Probability = declare(0.0, "flip_lr", "horizontal_flip")
  alternate_flips: bool = False
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
class EvaluationSettings(Settings):
  """The times and the settings of evaluation.

  Attributes:
    every: The interval between evaluations of validation, such as "500 steps" or "1 epochs".
    batch_size: The number of examples in a batch over all devices; None is the training batch size.
    limit: The number of validation examples, evenly spread over the split; None is all.
    attention_entropy: The number of validation examples on which the entropy of attention is
      computed for each log row of kind "train"; 0 is off.
    crop_ratio: The ratio of the image size to the size before the center crop.
    interpolation: The interpolation of the resizing.
    on_test: Whether each evaluation includes test; metrics of test never choose a checkpoint.
    weights: The weights to evaluate: ema (the moving average), raw or both; the metrics of the
      first choose the best checkpoint.
    stop_early: The number of consecutive evaluations without a better primary metric after which
      the run ends; None never ends it early.
  """

  every: Duration = declare("1 epochs", "eval_every", "eval_steps")
  batch_size: PositiveInt | None = declare(None, "eval_batch_size", "per_device_eval_batch_size")
  limit: PositiveInt | None = None
  attention_entropy: NonNegativeInt = 0
  crop_ratio: Share = declare(1.0, "crop_pct")
  interpolation: Interpolation = "bilinear"
  on_test: bool = False
  weights: tuple[Literal["ema", "raw"], ...] = ("ema",)
  stop_early: PositiveInt | None = declare(
    None, "patience", "early_stopping_patience", "early_stopping"
  )


@dataclass(frozen=True)
class CheckpointSettings(Settings):
  """The checkpoints of a run.

  Attributes:
    every: The interval between checkpoints, such as "500 steps" or "1 epochs".
    keep: The number of latest checkpoints to keep besides the best.
  """

  every: Duration = declare("1 epochs", "save_every", "save_steps", "ckpt_steps")
  keep: Annotated[int, Range("[2, 1000000]")] = declare(2, "checkpoint_hist", "save_total_limit")


@dataclass(frozen=True)
class LoraSettings(Settings):
  """Adapters of low rank beside frozen kernels (Hu et al. 2022); `model.lora` has them, if any.

  A kernel W with an adapter becomes W + alpha / rank * A B. All other weights stay those of
  init_from, except the head and what matches init_from_except, which are trained whole.

  Attributes:
    rank: The number of columns of A and of rows of B.
    alpha: The factor on A B is alpha / rank.
    names: Patterns of the names of the adapted modules, or of their ends, such as "query", "mlp/up"
      or "block_1[01]/.*/out".
    base: The digest of the weights of init_from; None takes any weights, and training records it.
  """

  rank: PositiveInt = 8
  alpha: Positive = 8.0
  names: tuple[str, ...] = ("query", "value")
  base: str | None = None


@dataclass(frozen=True)
class RunSettings(Settings):
  """The settings of a run.

  Durations are strings such as "300 steps", "2.5 epochs" or, with a bound, "30 epochs, at least 200
  steps". Every duration except `duration` itself may also be a share of the run, such as "5%".

  Attributes:
    seed: The default of the other three seeds.
    init_seed: The seed of the parameters; None means seed.
    data_seed: The seed of order, splits, augmentation and dropout; None means seed.
    graph_seed: The seed of random attention graphs; None means seed.
    batch_size: The number of examples in a step over all devices and processes.
    min_steps_per_epoch: The number of steps per epoch below which the batch is halved, down to 16
      examples and in multiples of grad_accum_steps; None never halves it.
    grad_accum_steps: The number of micro-batches per step.
    steps_per_dispatch: The maximum number of steps in one call of the compiled program, without any
      effect on the bits of the results; None chooses 1 to 16 by the FLOPs of a step.
    duration: The length of the run and of its schedule.
    stop_after: The point at which the run ends early; "" is the whole duration.
    learning_rate: The peak learning rate of the schedule.
    weight_decay_mask: The parameters that weight decay applies to: matrices stands for the weights
      of projections and convolutions; tensors for all parameters of two or more axes except biases;
      rank for those except position tables and class tokens; rank_but_bases for those except
      Sparsifiner's bases; all for every parameter.
    grad_clip_norm: The global norm to which the gradient is clipped; None is no clipping.
    layer_decay: The ratio of a block's learning rate to the next block's.
    rates: Pairs of a pattern of names of parameters and the factor on their learning rate, such as
      ("head/.*", 2.0); several factors on one parameter are multiplied.
    freeze: Patterns of the names of parameters that are not trained, such as "block_0/.*"; the
      running statistics of modules without other parameters are fixed too.
    ema_decay: The decay of the moving average of the parameters; 0 is off.
    ema_warmup: Whether the moving average is short at first: its decay grows with the updates.
    log_every: The interval between log rows of kind "train", such as "50 steps".
    init_from: The initial weights of a new run: a workdir, a file of weights, hf:OWNER/NAME or
      timm:NAME.
    init_from_except: Regular expressions of the names of parameters that need not fit init_from.
    phases: The changes to the config in each phase, by the phase's name; phases are runs that
      follow one another, and empty is a single run.
    deterministic: Whether a GPU gives bitwise repeatable results, at lower speed.
  """

  seed: Seed = declare(0, "rng_seed", "random_seed")
  init_seed: Seed | None = None
  data_seed: Seed | None = None
  graph_seed: Seed | None = None
  model: NamedChoice = declare(
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
  task: NamedChoice = declare(
    {"name": "classification", "label_smoothing": 0.0},
    smoothing=".label_smoothing",
    label_smoothing=".label_smoothing",
  )
  data: DataSettings = DataSettings()
  augment: AugmentSettings = AugmentSettings()
  evaluation: EvaluationSettings = EvaluationSettings()
  batch_size: PositiveInt = declare(128, "bs", "train_batch_size", "per_device_train_batch_size")
  min_steps_per_epoch: PositiveInt | None = None
  grad_accum_steps: PositiveInt = declare(1, "accumulate", "gradient_accumulation_steps")
  steps_per_dispatch: PositiveInt | None = None
  duration: Duration = declare("10 epochs", "epochs", "num_train_epochs", "max_steps")
  stop_after: Duration = ""
  learning_rate: NonNegative = declare(1e-3, "lr", "base_lr", "peak_lr")
  optimizer: NamedChoice = declare(
    {"name": "adamw", "weight_decay": 0.05},
    "opt",
    "optim",
    wd=".weight_decay",
    weight_decay=".weight_decay",
    momentum=".momentum",
  )
  schedule: NamedChoice = declare(
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
  rates: tuple[tuple[str, NonNegative], ...] = ()
  freeze: tuple[str, ...] = ()
  ema_decay: Rate = declare(0.0, "ema", "model_ema", "model_ema_decay")
  ema_warmup: bool = declare(True, "model_ema_warmup")
  log_every: Duration = declare("50 steps", "log_interval", "logging_steps", "log_training_steps")
  checkpoint: CheckpointSettings = CheckpointSettings()
  init_from: str | None = declare("", "pretrained", "initial_checkpoint", "model_init", "finetune")
  init_from_except: tuple[str, ...] = ()
  phases: Group = declare({})
  tracking: NamedChoice = declare(
    {"name": "none"}, "report_to", tensorboard="=tensorboard", wandb="=wandb"
  )
  deterministic: bool = False


def walk(section: type | None = None, prefix: str = "") -> Iterator[tuple[str, type, Any]]:
  """Yields the path, the dataclass and the declaration of every field of a config in order.

  Args:
    section: The dataclass with the fields; None is that of the whole config.
    prefix: The path of the section with a final dot, or "".
  """
  section = section or RunSettings
  for field in dataclasses.fields(section):
    if dataclasses.is_dataclass(field.type):
      yield from walk(field.type, f"{prefix}{field.name}.")  # type: ignore[arg-type]
    else:
      yield f"{prefix}{field.name}", section, field


def declarations() -> dict[str, Any]:
  """Returns the declaration of every field by its path."""
  return _declarations(RunSettings)


@functools.cache
def _declarations(settings: type) -> dict[str, Any]:
  return {path: field for path, _, field in walk(settings)}


def find(config: Mapping[str, Any], path: str) -> Any:
  """Returns the value at a dotted path of a config, or `MISSING` if there is none."""
  node: Any = config
  for key in path.split("."):
    if not hasattr(node, "keys") or key not in node:
      return MISSING
    node = node[key]
  return node


def default_of(path: str) -> Any:
  """Returns the default of a field, or None for a field that is not declared here."""
  field = declarations().get(path)
  if field is None:
    return None
  return field.default_factory() if field.default is MISSING else field.default


def default_config() -> ConfigDict:
  """Returns a config in which every field has its default and its declared type."""
  config = ConfigDict()
  for path, field in declarations().items():
    *parents, last = path.split(".")
    node = config
    for parent in parents:
      node[parent] = node.get(parent) or ConfigDict()
      node = node[parent]
    default = default_of(path)
    if default is None:
      kinds = base_types(field.type) - {type(None)}
      default = placeholder(kinds.pop() if len(kinds) == 1 else object)
    node[last] = ConfigDict(dict(default)) if isinstance(default, Group) else default
  return config.lock()


def named_choices() -> list[str]:
  """Returns the paths of all named choices, such as "optimizer"."""
  return [path for path, field in declarations().items() if field.type == NamedChoice]


def seed_of(config: Mapping[str, Any], field: str) -> int:
  """Returns a seed of `SEEDS`, which is the config's `seed` unless it is set."""
  return config["seed"] if config[field] is None else config[field]


def suggest(path: str, valid: Iterable[str]) -> str:
  """Returns " Did you mean 'x'?" for the name of an unknown field, or "" if no field is similar.

  Args:
    path: The path of the unknown field, such as "lr" or "data.fit". If its last part is another
      name for a field, see `declare`, that field is suggested.
    valid: The valid fields in the section of `path`, of which otherwise the nearest is suggested.
  """
  known = {
    f"{field.removesuffix(declared.name)}{alias}": f"{field}{below}"
    for field, declared in declarations().items()
    for alias, below in declared.metadata.get("aliases", {}).items()
  }
  name = path.rpartition(".")[2]
  others = (field for alias, field in known.items() if alias.rpartition(".")[2] == name)
  meant = known.get(path) or next((field for field in others if field != path), None)
  return f" Did you mean {meant!r}?" if meant else nearest(name, valid)


def read_settings(config: Mapping[str, Any]) -> RunSettings:
  """Returns the settings of a config, in which fields that it lacks have their defaults.

  The fields of named choices, such as `optimizer`, are checked later by `registry.build`.

  Raises:
    ConfigError: A value has the wrong type or is out of range; the message names the field.
  """
  return read_fields(RunSettings, config, "")


def find_lora(model: Mapping[str, Any]) -> LoraSettings | None:
  """Returns the settings of the adapters of a config's `model` entry; None if it has none."""
  return read_fields(LoraSettings, model["lora"], LORA) if "lora" in model else None


def without_lora(settings: RunSettings) -> RunSettings:
  """Returns settings whose network has no adapters, for weights into which they are merged."""
  model = {field: value for field, value in settings.model.items() if field != "lora"}
  return change(settings, {"model": model})


def check_fold(fold: int | None, folds: int) -> int:
  """Returns `data.fold` if it is one of the `data.folds` folds."""
  if fold is None or not 0 <= fold < folds:
    raise ConfigError(
      f"data.fold={fold}: data.folds={folds} has the folds 0 to {folds - 1}; name one, or train all"
      f" by vitx sweep --over 'data.fold=[{','.join(map(str, range(folds)))}]'."
    )
  return fold
