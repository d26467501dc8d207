"""Finds the teacher of a distillation: the architecture for the config, weights for the task."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from vitx.checkpoints import tree
from vitx.checkpoints.load import Loaded
from vitx.config import registry
from vitx.config.errors import ConfigError
from vitx.data.class_names import find_in_weights
from vitx.data.dataset import DatasetInfo
from vitx.interop.init_from import Fit, initial_variables
from vitx.interop.init_from import check_source as check_weights
from vitx.interop.repository import is_weights, load, read_run_config
from vitx.models import initialize, names, token_layout
from vitx.tasks.base import Task, Teacher

CONSTANT = "teacher"  # the teacher's name among the task's constants


def with_model(config: ConfigDict) -> ConfigDict:
  """Returns a config that contains its teacher's architecture, read from the teacher's workdir."""
  source = config.task.get("teacher") if isinstance(config.task, ConfigDict) else None
  if not source or config.task.get("teacher_model") is not None or is_weights(source):
    return config
  config = config.copy_and_resolve_references()
  model = ConfigDict(read_run_config(source).model)
  if not registry.is_trusted():
    registry.refuse_names_of_code(model, "task.teacher_model")
  with config.unlocked():
    config.task.teacher_model = model
  return config


def blank_constants(task: Task) -> dict[str, Any]:
  """Returns the dict of `load_constants` with zeros as weights, without reading any file."""
  if task.teacher is None:
    return {}
  return {CONSTANT: tree.zeros(_shapes(task.teacher))}


def load_constants(task: Task, config: ConfigDict, info: DatasetInfo) -> dict[str, Any]:
  """Returns a dict with the weights of a task's teacher, as `teacher`; {} without a teacher.

  The dict is part of the task's constants.

  Args:
    task: The task that learns.
    config: The resolved config of the run, see `experiment.resolve`.
    info: The description of the run's data. The teacher's outputs are put in the order of the
      run's classes.
  """
  teacher = task.teacher
  if teacher is None:
    return {}
  if is_weights(teacher.source):
    return {CONSTANT: _from_file(teacher, info)}
  loaded = load(teacher.source)
  _check_data(teacher, loaded.config, config)
  where = f"task.teacher={teacher.source!r}"
  tree.check_match(tree.name_leaves(loaded.variables), _shapes(teacher), where)
  return {CONSTANT: _order_classes(loaded, teacher, info)}


def _order_classes(loaded: Loaded, teacher: Teacher, info: DatasetInfo) -> dict[str, Any]:
  """Returns a teacher's variables with its heads' columns in the order of the run's classes."""
  if info.class_names is None:
    return loaded.variables
  known = loaded.class_names if loaded.knows_class_names else None
  indices = find_in_weights(info, teacher.source, known, len(loaded.class_names))
  if isinstance(indices, str):
    raise ConfigError(
      f"task.teacher={teacher.source!r} knows {indices}. Choose a teacher of this run's classes."
    )
  params = {
    name: x[..., indices] if names.is_head(name) else x
    for name, x in tree.name_arrays(loaded.variables["params"]).items()
  }
  return {**loaded.variables, "params": tree.fill(loaded.variables["params"], params)}


def check(teacher: Teacher, config: ConfigDict, phase: Any = None) -> None:
  """Checks a teacher of a run with the resolved `config`, without reading the teacher's weights.

  If the teacher is an earlier phase of the run, `phase` is that phase's experiment.
  """
  shapes = _shapes(teacher)
  if phase is not None:
    _check_data(teacher, phase.config, config)
    state = phase.named_shapes()
    variables = {"params": state.params, **state.model_state}
    tree.check_match(tree.name_leaves(variables), shapes, f"task.teacher={teacher.source!r}")
  elif is_weights(teacher.source):
    layout = token_layout(teacher.model, teacher.input_spec.shape)
    fit = Fit(network=teacher.model, new_head=False)
    check_weights(teacher.source, shapes.pop("params"), shapes, layout, fit)
  else:
    _check_data(teacher, read_run_config(teacher.source), config)


def _check_data(teacher: Teacher, teacher_run: ConfigDict, config: ConfigDict) -> None:
  """Checks that the images of a teacher's training were prepared like the images of this run."""
  for field in teacher.agree:
    before, now = teacher_run.data.get(field), config.data.get(field)
    if before != now:
      raise ConfigError(
        f"task.teacher={teacher.source!r} was trained with data.{field}={before!r}, but this run"
        f" has {now!r}. Set data.{field}={before!r}."
      )


def _from_file(teacher: Teacher, info: DatasetInfo) -> dict[str, Any]:
  """Returns a teacher's variables from a file of published weights."""
  variables = jax.jit(lambda key: _initialize(teacher, key))(jax.random.key(0))
  params = variables.pop("params")
  layout = token_layout(teacher.model, teacher.input_spec.shape)
  find = functools.partial(find_in_weights, info, teacher.source) if info.class_names else None
  fit = Fit(network=teacher.model, new_head=False, match_classes=find)
  params, state = initial_variables(teacher.source, params, variables, layout, fit)
  return {"params": params, **state}


def _initialize(teacher: Teacher, key: jax.Array) -> dict[str, Any]:
  x = jnp.zeros(teacher.input_spec.shape, teacher.input_spec.dtype)
  variables = initialize(teacher.model, {"params": key, "dropout": key}, x, train=False)
  return {name: tree for name, tree in variables.items() if name != "losses"}


def _shapes(teacher: Teacher) -> dict[str, Any]:
  return jax.eval_shape(lambda key: _initialize(teacher, key), jax.random.key(0))
