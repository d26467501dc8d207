"""The fields of a config that are no part of a named choice: the type and range of each."""

from collections.abc import Mapping
from typing import Any, Literal

from vitx.config.checks import (
  NonNegative,
  NonNegativeInt,
  Positive,
  PositiveInt,
  Rate,
  Seed,
  Share,
  check_fields,
  check_pattern,
  check_value,
)
from vitx.config.errors import ConfigError
from vitx.data.settings import DataSettings
from vitx.tasks import task_class

NAMED = ("model", "task", "optimizer", "schedule", "tracking")
SEEDS = ("init_seed", "data_seed", "graph_seed")
# By path. `DataSettings` has those of `data`; the task's `sections` have what it reads besides.
FIELDS: dict[str, Any] = {
  "seed": Seed,
  "init_seed": Seed | None,
  "data_seed": Seed | None,
  "graph_seed": Seed | None,
  "evaluation.every": str | int,
  "evaluation.batch_size": PositiveInt | None,
  "evaluation.limit": PositiveInt | None,
  "evaluation.on_test": bool,
  "evaluation.attention_entropy": NonNegativeInt,
  "evaluation.weights": tuple[Literal["ema", "raw"], ...],
  "batch_size": PositiveInt,
  "grad_accum_steps": PositiveInt,
  "steps_per_dispatch": PositiveInt | None,
  "duration": str | int,
  "stop_after": str | int,
  "learning_rate": NonNegative,
  "weight_decay_mask": Literal["matrices", "rank", "rank_but_bases", "tensors", "all"],
  "grad_clip_norm": Positive | None,
  "layer_decay": Share,
  "freeze": tuple[str, ...],
  "ema_decay": Rate,
  "ema_warmup": bool,
  "log_every": str | int,
  "checkpoint.every": str | int,
  "checkpoint.keep": PositiveInt,
  "init_from": str | None,
  "init_from_except": tuple[str, ...],
  "deterministic": bool,
}


def check_config(config: Mapping[str, Any]) -> None:
  """Holds a config to the types and ranges of its fields, before anything is opened.

  The fields of named choices are checked where those are built.

  Raises:
    ConfigError: naming the field, in one line.
  """
  for name in NAMED:
    choice = config[name]
    if not isinstance(choice, str) and "name" not in getattr(choice, "keys", tuple)():
      raise ConfigError(
        f"{name}={choice!r} is no named choice; write {name}=NAME, and its fields as"
        f" {name}.FIELD=VALUE"
      )
  for path, kind in FIELDS.items():
    section, _, field = path.rpartition(".")
    node = config[section] if section else config
    if field in node:
      check_value(node[field], path, kind)
  for pattern in config["init_from_except"]:
    check_pattern(pattern, "init_from_except")
  sections = [("data", DataSettings), *task_class(config["task"]).sections.items()]
  for section, declared in sections:
    check_fields(declared, config[section], section)
