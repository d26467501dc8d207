"""Settles a run: the settings and the task that follow from its config and its data."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from vitx.config import fields
from vitx.config.fields import RunSettings
from vitx.config.settings import change, to_config
from vitx.data.dataset import DatasetInfo, Source
from vitx.data.sources import find_info, make_up_statistics, open_source
from vitx.models import resolve_model
from vitx.tasks import build_task, task_class
from vitx.tasks.base import Task


@dataclasses.dataclass(frozen=True, eq=False)
class Settled:
  """The settings and the task of a run, which follow from its config and its data.

  Attributes:
    settings: The resolved settings, in which the fields that depend on the data are set.
    task: The task, which contains the network.
  """

  settings: RunSettings
  task: Task


def read(config: Mapping[str, Any]) -> RunSettings:
  """Returns the settings of a config after a check of all types, ranges and fields of the task.

  Raises:
    ConfigError: A value is wrong; the message names the field in one line.
  """
  settings = fields.read_settings(config)
  task_class(settings.task)
  return settings


def resolve(config: Mapping[str, Any], source: Source | DatasetInfo) -> RunSettings:
  """Returns a config's settings, and sets the fields that follow from other fields or the data."""
  draft = to_config(fields.read_settings(config))
  for seed in fields.SEEDS:
    draft[seed] = fields.seed_of(draft, seed)
  task_class(draft.task).resolve(draft, source)
  draft.model = ConfigDict(resolve_model(draft.model, seed=draft.graph_seed))
  return fields.read_settings(draft)


def settle(config: Mapping[str, Any], source: Source | DatasetInfo) -> Settled:
  """Returns the settings and the task that follow from a config and its data.

  Args:
    config: The config or the settings, which need not be resolved.
    source: The data, or only their description if nothing must be computed from examples.
  """
  settings = resolve(config, source)
  return Settled(settings, build_task(settings))


def open_data(config: Mapping[str, Any], recorded: Mapping[str, Any] | None = None) -> Source:
  """Opens the data set of a config that is not resolved yet.

  The `data_seed`, or else the `seed`, chooses the examples of validation. The classes have the
  order that they have in `recorded`, a run's record of its data.
  """
  seed = fields.seed_of(config, "data_seed")
  return open_source(config["data"], seed, (recorded or {}).get("class_names"))


def complete_config(config: Mapping[str, Any]) -> RunSettings:
  """Returns the settings of a config, in which the fields that follow from its data set are set.

  One of these fields is the number of classes. The data sets of TFDS and of vitx are known by their
  names. Any other data set is opened, unless the config describes it. The means and deviations of
  the pixels are made up, since no cost depends on them.
  """
  settings = fields.read_settings(config)
  info = task_class(settings.task).state_info(settings) or find_info(settings.data)
  data = make_up_statistics(settings.data, info)
  return resolve(change(settings, {"data": data}), info)
