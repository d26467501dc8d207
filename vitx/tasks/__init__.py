"""The tasks by name; a task defines the data's arrays, the loss and the metrics of a model."""

from collections.abc import Mapping
from typing import Any

from vitx.config.checks import check_fields
from vitx.config.fields import RunSettings
from vitx.config.registry import Table, check_options, fields_of, lookup
from vitx.tasks.base import Task as Task

TASKS = Table(
  "vitx.tasks",
  alignment="alignment:Alignment",
  classification="classification:Classification",
  density="density:Density",
  distillation="distillation:Distillation",
  masked_autoencoder="masked_autoencoder:MaskedAutoencoding",
  multilabel="multilabel:MultiLabel",
  regression="regression:Regression",
)


def task_class(spec: str | Mapping[str, Any]) -> Any:
  """Returns the class of the task that a config names, after a check of the task's fields."""
  fields = fields_of(spec)
  task = lookup(TASKS, fields.pop("name", None), "task.name")
  check_options(task.from_config, fields, "task", hidden=("config",))
  check_fields(task.from_config, fields, "task")
  return task


def build_task(settings: RunSettings) -> Task:
  """Returns the task of resolved settings, without loading data."""
  fields = fields_of(settings.task)
  del fields["name"]
  return task_class(settings.task).from_config(settings, **fields)
