"""The tasks by name; a task defines the data's arrays, the loss and the metrics of a model."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from vitx.config.checks import check_fields
from vitx.config.registry import check_options, fields_of, lookup
from vitx.tasks.base import Task as Task
from vitx.tasks.classification import Classification
from vitx.tasks.density import Density
from vitx.tasks.distillation import Distillation
from vitx.tasks.masked_autoencoder import MaskedAutoencoding
from vitx.tasks.multilabel import MultiLabel
from vitx.tasks.regression import Regression

TASKS: dict[str, type] = {
  "classification": Classification,
  "density": Density,
  "distillation": Distillation,
  "masked_autoencoder": MaskedAutoencoding,
  "multilabel": MultiLabel,
  "regression": Regression,
}


def task_class(spec: str | Mapping[str, Any]) -> Any:
  """Returns the class of the task that a config names, after a check of the task's fields."""
  fields = fields_of(spec)
  task = lookup(TASKS, fields.pop("name", None), "task.name")
  check_options(task.from_config, fields, "task", hidden=("config",))
  check_fields(task.from_config, fields, "task")
  return task


def build_task(config: ConfigDict) -> Task:
  """Returns the task of a resolved config, without loading data."""
  fields = fields_of(config.task)
  del fields["name"]
  return task_class(config.task).from_config(config, **fields)
