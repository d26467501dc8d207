"""What every config has in common: the default of every field, and overrides in one string.

A config file offers `get_config(arg)`; `arg` is `ROW,field=value,...`, for example
`--config configs/digits.py:performer,seed=3,optimizer.weight_decay=0.1`. A field that holds a named
choice (a dict with a `name`) is replaced whole by a bare name: `token_mixer=softmax` drops the
fields of the mixer that stood there.
"""

import ast
import difflib
from collections.abc import Iterable
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

# What a user may write for a field that lies deeper.
SHORT = {
  "dataset": "data.source",
  "token_mixer": "model.token_mixer",
  "posemb": "model.posemb",
  "pool": "model.pool",
  "stem": "model.stem",
  "dtype": "model.dtype",
}
# The named choices of a model, which a config may leave to the model's own defaults.
PARTS = (
  "stem",
  "posemb",
  "pool",
  "norm",
  "block",
  "token_mixer",
  "token_reduction",
  "initialization",
)
# Fields that had another name.
RENAMED = {
  "accumulate": "grad_accum_steps",
  "clip_norm": "grad_clip_norm",
  "data.fit": "data.resize_mode",
  "data.select": "data.validation",
  "data.splits.report": "data.splits.test",
  "data.splits.select": "data.splits.validation",
  "data.stored_size": "data.decode_size",
  "data.varied_size": "data.default_image_size",
  "decay": "weight_decay_mask",
  "ema": "ema_decay",
  "tensorboard": "tracking (tracking=tensorboard)",
  "model.initialisation": "model.initialization",
  "model.token_mixer.centre": "model.token_mixer.center",
  "model.token_mixer.stabiliser": "model.token_mixer.stabilizer",
}

# What a field takes, in words.
KINDS = {
  bool: "True or False",
  int: "an integer",
  float: "a number",
  str: "a string",
  tuple: "a tuple",
}


def default_config() -> ConfigDict:
  """Returns every field with its default. Durations are strings: "300 steps", "2.5 epochs"."""
  config = ConfigDict()
  config.seed = 0  # the others follow from it unless they are set
  config.init_seed = placeholder(int)  # of the parameters; None means seed
  config.data_seed = placeholder(int)  # of order, splits, augmentation, dropout; None means seed
  config.graph_seed = placeholder(int)  # of random attention graphs; None means seed

  config.model = ConfigDict({"name": "vit"})
  config.task = ConfigDict({"name": "classification", "label_smoothing": 0.0})

  config.data = ConfigDict(
    dict(
      source="digits",  # digits | tiny_imagenet | a TFDS name | folder:PATH
      data_dir=placeholder(str),  # TFDS directory; else $TFDS_DATA_DIR, else ~/tensorflow_datasets
      # Which splits play the three roles (TFDS split names); empty: found from the source.
      splits=dict(
        train="",  # what the model learns from
        validation="",  # chooses the best checkpoint
        test="",  # touched once, at the end
      ),
      validation=0.1,  # the share carved from train for validation if no split is to spare
      validation_choice=placeholder(str),  # a name or module:function; None draws the share
      fraction=1.0,  # class-balanced part of train
      repeats=1,  # how often each example comes in a row, differently augmented
      channels=3,  # of a folder: 1, 3 or 4; a TFDS set has its own
      value_range=placeholder(tuple),  # (black, white) of images of more than 8 bits
      image_size=placeholder(object),  # the model's, a side or (height, width); None: the source's
      default_image_size=placeholder(object),  # that size for a source whose images vary in size
      decode_size=placeholder(object),  # of what the host keeps; None means enough for the above
      resize_mode="center",  # how an image gets that aspect ratio: center | squash | random
      interpolation="bilinear",  # of the host's resizing: bilinear | bicubic | random
      memory="auto",  # decode once and keep: auto | always | never
      device="auto",  # keep on the devices what is kept: auto (accelerators) | always | never
      threads=4,  # decoding threads when streaming
      on_unreadable=placeholder(str),  # refuse (None) | skip: examples that cannot be read
      mean=placeholder(tuple),  # per channel, of pixels in 0..1; None means the source's
      std=placeholder(tuple),  # per channel, of pixels in 0..1; None means the source's
    )
  )
  config.augment = ConfigDict(
    dict(
      pad_crop=0,  # pixels of padding before a random crop
      random_resized_crop=(),  # (smallest, largest) share of the area; not with pad_crop
      hflip=0.0,  # probability of a flip from left to right
      vflip=0.0,  # probability of a flip upside down
      rotate=0.0,  # largest angle in degrees, either way
      color_jitter=(),  # (brightness, contrast, saturation, hue); empty: off
      randaugment=(),  # (number of operations, magnitude 0..10); not with autoaugment
      randaugment_probability=1.0,  # with which each operation is applied
      randaugment_std=0.0,  # standard deviation of the magnitude
      randaugment_operations="paper",  # paper | increasing (timm's)
      autoaugment=False,  # the CIFAR policy
      random_erasing=0.0,  # probability
      random_erasing_fill="zero",  # zero | noise, of each pixel
      mixup=0.0,  # alpha; 0: off
      cutmix=0.0,  # alpha; 0: off. With both, each pair draws one of the two.
      mixing="pair",  # who draws: each pair of images, or the batch for all of them
      interpolation="bilinear",  # bilinear | nearest | bicubic | random (of bilinear and bicubic)
    )
  )
  config.evaluation = ConfigDict(
    dict(
      every="1 epochs",  # how often validation is evaluated
      batch_size=placeholder(int),  # over all devices; None means the training batch
      limit=placeholder(int),  # examples of validation, spread evenly over it; None means all
      attention_entropy=0,  # examples of validation by which rows of kind "train" tell it; 0: off
      crop_ratio=1.0,  # image_size / size to which the stored image is resized before the crop
      interpolation="bilinear",  # nearest | bilinear | bicubic
      on_test=False,  # also evaluate test each time; it chooses nothing
      weights=("ema",),  # ema, raw or both are evaluated; the first chooses the best
    )
  )

  config.batch_size = 128  # over all devices and processes
  config.grad_accum_steps = 1  # micro-batches per step
  config.steps_per_dispatch = placeholder(int)  # at most, same bits; None: as FLOPs suggest, 1...16
  config.duration = "10 epochs"  # of the run, and of its schedule
  config.stop_after = ""  # where the run ends before that; "": with the duration
  config.learning_rate = 1e-3  # the schedule's peak
  config.optimizer = ConfigDict({"name": "adamw", "weight_decay": 0.05})
  config.schedule = ConfigDict({"name": "cosine", "warmup": "0 steps"})
  config.weight_decay_mask = "matrices"  # matrices | rank | rank_but_bases | tensors | all
  config.grad_clip_norm = placeholder(float)  # global norm of the gradient; None means not clipped
  config.layer_decay = 1.0  # learning rate of a block relative to the next one
  config.freeze = ()  # patterns of parameter names such as "block_0/.*"; their statistics stay too
  config.ema_decay = 0.0  # decay of the moving average of parameters; 0: off
  config.ema_warmup = True  # whether the average is short at first

  config.log_every = "50 steps"  # how often a row of kind "train" is written
  config.checkpoint = ConfigDict(
    dict(
      every="1 epochs",  # how often the state is saved
      keep=2,  # checkpoints beside the best
    )
  )
  config.init_from = ""  # a workdir, file of weights or hf:NAME that a new run starts from
  config.init_from_except = ()  # regular expressions of names that need not fit such a file
  config.phases = ConfigDict()  # what each of several runs changes, by its name; empty: one run
  config.tracking = ConfigDict({"name": "none"})  # none | tensorboard | wandb | trackio
  config.deterministic = False  # on GPU: bitwise repeatable, slower
  return config.lock()


def with_overrides(config: ConfigDict, overrides: str) -> ConfigDict:
  """Applies `field=value,field=value`; values are Python literals or bare strings.

  Raises:
    ValueError: an unknown field (with the nearest), a value of the wrong type, a field that is set
      twice, or a choice that drops the fields set before it.
  """
  seen: dict[str, str] = {}
  for item in split(overrides):
    if "=" not in item:
      raise ValueError(
        f"config override {item!r} is not of the form field=value; a value that has commas stands"
        " in quotes: field='a,b'"
      )
    field, text = item.split("=", 1)
    field = SHORT.get(field, _expand(field))
    if field in seen:
      raise ValueError(f"config override {item!r}: {field}={seen[field]} is set already; say once")
    below = [other for other in seen if other.startswith(f"{field}.")]
    if below:
      raise ValueError(f"config override {item!r} drops {below[0]}={seen[below[0]]}; say it first")
    seen[field] = text
    set_field(config, field, _literal(text))
  return config


def parse_arg(arg: str | None, rows: Iterable[str], default: str) -> tuple[str, str]:
  """Splits `ROW,field=value,...` into the row's name and the overrides; the row may be left out.

  Raises:
    ValueError: the row is unknown; lists the rows and the nearest.
  """
  items = split(arg or "")
  row = items.pop(0) if items and "=" not in items[0] else default
  if row not in rows:
    raise ValueError(f"unknown row {row!r}.{_nearest(row, rows)} Rows: {', '.join(rows)}.")
  return row, ",".join(items)


def take_override(overrides: str, key: str, choices: Iterable[str]) -> tuple[str, str]:
  """Takes `key=value` out of the overrides, for a file that gives it a meaning of its own.

  Returns:
    The value, the first of `choices` where it is left out, and the other overrides.

  Raises:
    ValueError: the value is none of the choices; lists them and the nearest.
  """
  items = split(overrides)
  own = [item for item in items if item.split("=", 1)[0] == key]
  if len(own) > 1:
    raise ValueError(f"config override {own[1]!r}: {own[0]} is set already; say once")
  value = own[0].partition("=")[2] if own else next(iter(choices))
  if value not in choices:
    raise ValueError(f"{key}={value!r} is unknown.{_nearest(value, choices)} Valid: {choices}.")
  return value, ",".join(item for item in items if item not in own)


def with_source_facts(
  config: ConfigDict, source: str, *, num_classes: int, **data: Any
) -> ConfigDict:
  """Says what a data set is like, as far as the config still uses it and has not said otherwise.

  Another data set has its own classes, image size and statistics, which are found when it is
  opened. Call it after the overrides.

  Args:
    config: with its overrides.
    source: the data set that the facts are about.
    num_classes: of it.
    **data: fields of `config.data`, such as `image_size`, `mean`, `std`.
  """
  if config.data.source != source:
    return config
  with config.unlocked():
    config.model.num_classes = config.model.get("num_classes", num_classes)
    for field, value in data.items():
      if config.data[field] is None:
        config.data[field] = value
  return config


def set_field(config: ConfigDict, path: str, value: Any) -> None:
  """Sets a dotted field, keeping its type; a bare name for a named choice replaces it whole.

  Raises:
    ValueError: no such field (names the nearest, or what it is called now), or another type.
  """
  *parents, last = path.split(".")
  if parents[:1] == ["phases"]:
    _set_in_phase(config, path, value)
    return
  node = config
  for depth, key in enumerate(parents):
    if isinstance(node.get(key), str) and "name" in node and key != "name":
      _replace(node, key, ConfigDict({"name": node[key]}))  # a bare name, about to get a field
    if not isinstance(node.get(key), ConfigDict):
      raise ValueError(_unknown(path, ".".join(parents[: depth + 1]), key, node))
    node = node[key]
  # A named choice takes any field: whoever builds it knows its fields and checks them.
  if path in RENAMED or (last not in node and "name" not in node):
    raise ValueError(_unknown(path, path, last, node))
  old = node.get(last)
  if isinstance(old, ConfigDict) and "name" not in old and isinstance(value, dict):
    for key, entry in value.items():  # a group of fields keeps what is not mentioned
      set_field(config, f"{path}.{key}", entry)
    return
  if "name" not in node:
    _check_kind(path, old, value)
  value = _fit(old, value, is_part=parents == ["model"] and last in PARTS)
  try:
    _replace(node, last, value)
  except TypeError as error:
    wanted = KINDS.get(node.get_type(last), f"like {old!r}")
    example = "" if old is None else f", such as {old!r}"
    raise ValueError(f"{path}={value!r} must be {wanted}{example}") from error


def _set_in_phase(config: ConfigDict, path: str, value: Any) -> None:
  """Sets what a phase changes; its fields are held to the config's where phases are split."""
  *parents, last = path.split(".")[1:]  # the phase's name, then a path of a config
  if not parents and not isinstance(value, dict):
    raise ValueError(f"{path}={value!r}: it has fields of its own, those of a config")
  like: Any = config
  for key in (*parents[1:], last) if parents else ():
    like = like.get(key) if isinstance(like, ConfigDict) else None
  node = config.phases
  for key in parents:
    _replace(node, key, node.get(key) or ConfigDict())
    node = node[key]
  _replace(node, last, _fit(node.get(last, like) if parents else None, value, is_part=False))


def _replace(node: ConfigDict, key: str, value: Any) -> None:
  """Sets an entry, whose type stays but for a name that becomes a choice with fields."""
  with node.unlocked():
    if isinstance(node.get(key), str) and isinstance(value, ConfigDict):
      del node[key]
    node[key] = value


def _check_kind(path: str, old: Any, value: Any) -> None:
  """Raises ValueError for what ConfigDict lets pass, such as True as a number."""
  if isinstance(old, ConfigDict) and not isinstance(value, dict):
    if "name" not in old:
      raise ValueError(f"{path}={value!r}: it has fields of its own: {', '.join(sorted(old))}")
    if not isinstance(value, str) or not value:
      raise ValueError(f"{path}={value!r} must be a name, or a dict with a name and fields")
  elif isinstance(value, bool) and isinstance(old, int | float) and not isinstance(old, bool):
    raise ValueError(f"{path}={value!r} must be a number")
  elif value is None and old is not None and _default(path) is not None:
    raise ValueError(f"{path}=None cannot be; say a value such as {old!r}")


def _default(path: str) -> Any:
  node = default_config()
  for key in path.split("."):
    node = node.get(key)
  return node


def _fit(old: Any, value: Any, is_part: bool) -> Any:
  """Returns a value as the field keeps it that holds `old`."""
  is_choice = isinstance(old, ConfigDict) and "name" in old
  if isinstance(value, str) and (is_choice or (is_part and old is None)):
    value = {"name": value}
  if isinstance(value, dict):
    return ConfigDict(value)
  if isinstance(old, str) and not isinstance(value, str | None):
    return str(value)  # a duration in steps may be written as a number
  if isinstance(old, tuple) and not isinstance(value, tuple | None):
    return tuple(value) if isinstance(value, list) else (value,)
  return value


def _expand(field: str) -> str:
  head, _, rest = field.partition(".")
  return f"{SHORT[head]}.{rest}" if rest and head in SHORT else field


def _literal(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def split(text: str) -> list[str]:
  """Splits at commas that stand outside brackets and quotes: `data.source='folder:/a,b'`."""
  items, depth, start = [], 0, 0
  quote, before = "", ","
  for i, character in enumerate(text):
    if quote:
      quote = "" if character == quote else quote
    elif character in "'\"" and before in "=,:([{":  # where a value begins; else an apostrophe
      quote = character
    else:
      depth += (character in "([{") - (character in ")]}")
      if character == "," and depth == 0:
        items.append(text[start:i].strip())
        start = i + 1
    before = before if character.isspace() else character
  return [item for item in [*items, text[start:].strip()] if item]


def _unknown(path: str, prefix: str, key: str, node: ConfigDict) -> str:
  for name in (path, prefix):
    if name in RENAMED:
      return f"config has no field {name!r}: it is now {RENAMED[name]}"
  fields = ", ".join(sorted(node))
  return f"config has no field {prefix!r}.{_nearest(key, node)} Fields there: {fields}."


def _nearest(name: str, choices) -> str:
  close = difflib.get_close_matches(name, list(choices), n=1)
  return f" Did you mean {close[0]!r}?" if close else ""
