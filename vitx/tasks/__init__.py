"""Tasks by name: what is learned, from which arrays, and by which figure it is judged."""

from typing import Any

from ml_collections import ConfigDict

from vitx.checks import check_fields
from vitx.registry import check_options, lookup
from vitx.tasks.base import Task as Task
from vitx.tasks.classification import Classification

TASKS: dict[str, type] = {"classification": Classification}


def task_class(config: ConfigDict) -> Any:
  """Returns the class that `config.task` names, its fields checked.

  Raises:
    ConfigError: an unknown name or field, or a value out of range.
  """
  task = lookup(TASKS, config.task.name, "task.name")
  fields = _settings(config)
  check_options(task.from_config, fields, "task", hidden=("config",))
  check_fields(task.from_config, fields, "task")
  return task


def build_task(config: ConfigDict) -> Task:
  """Returns the task of a resolved config; needs no data.

  Raises:
    ConfigError: a name or field of the task or of its model is unknown, or a value out of range.
  """
  return task_class(config).from_config(config, **_settings(config))


def _settings(config: ConfigDict) -> dict[str, Any]:
  return {field: value for field, value in config.task.items() if field != "name"}
