"""Finds the weights with which a run begins, and the network and weights of its teacher."""

import functools
import os
from typing import Any

import jax

from vitx.checkpoints import tree
from vitx.checkpoints.load import Loaded
from vitx.config import registry
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings, find_lora
from vitx.config.settings import change
from vitx.data.class_names import find_in_weights
from vitx.data.dataset import DatasetInfo
from vitx.interop.init_from import Fit, initial_variables, read_base, warn_of_seen_examples
from vitx.interop.init_from import check_source as check_weights
from vitx.interop.repository import is_weights, load, read_run_settings
from vitx.interop.transfer import MatchClasses
from vitx.models import lora, names
from vitx.tasks.base import Task, Teacher, find_layout, init_shapes, init_variables, measurements

CONSTANT = "teacher"  # the teacher's name among the task's constants


def make_fit(task: Task, settings: RunSettings, info: DatasetInfo) -> Fit:
  """Returns the conditions under which a run begins with the weights of `init_from`."""
  return Fit(
    allowed=settings.init_from_except,
    network=task.model,
    layout=find_layout(task),
    match_classes=_make_finder(info, settings.init_from or ""),
    settings=settings,
    fingerprint=info.fingerprint,
    may_add="lora" not in settings.model,
  )


def _make_finder(info: DatasetInfo, source: str) -> MatchClasses | None:
  """Returns the function that finds the run's classes in the weights; None without classes."""
  return None if info.class_names is None else functools.partial(find_in_weights, info, source)


def with_teacher_model(settings: RunSettings) -> RunSettings:
  """Returns settings that contain the teacher's architecture, read from the teacher's workdir."""
  source = settings.task.get("teacher")
  if not source or settings.task.get("teacher_model") is not None or is_weights(source):
    return settings
  model = read_run_settings(source).model
  if not registry.is_trusted():
    registry.refuse_names_of_code(model, "task.teacher_model")
  return change(settings, {"task.teacher_model": model})


def blank_constants(task: Task, settings: RunSettings) -> dict[str, Any]:
  """Returns all constants of a run, with zeros as the weights of a teacher and base of adapters."""
  constants = task.constants()
  if (adapters := find_lora(settings.model)) is not None:
    constants = constants | lora.make_constants(adapters, tree.zeros(init_shapes(task)["params"]))
  if task.measured:
    constants = constants | {"measured": measurements(task)}
  if task.teacher is None:
    return constants
  return constants | {CONSTANT: tree.zeros(init_shapes(task.teacher))}


def load_base(task: Task, settings: RunSettings) -> tuple[RunSettings, dict[str, Any]]:
  """Reads the frozen weights of a run with adapters, a part of the task's constants.

  Returns:
    The settings, in which the place and the digest of the weights are set, and a dict with the
    weights as `base`. Without adapters, the settings are unchanged and the dict is empty.

  Raises:
    ConfigError: There are no weights, they do not fit, or they have another digest.
  """
  if "lora" not in settings.model:
    return settings, {}
  if not settings.init_from:
    raise ConfigError("model.lora adapts the weights of init_from, which is not set; name them.")
  constants, digest = read_base(settings, task, init_shapes(task))
  place = os.path.abspath(settings.init_from)  # for a reader in another folder
  source = place if os.path.exists(place) else settings.init_from
  return change(settings, {"init_from": source, "model.lora.base": digest}), constants


def load_constants(task: Task, settings: RunSettings, info: DatasetInfo) -> dict[str, Any]:
  """Returns a dict with the weights of a task's teacher, as `teacher`; {} without a teacher.

  The dict is part of the task's constants.

  Args:
    task: The task of the run, whose network learns from the teacher.
    settings: The resolved settings of the run.
    info: The description of the run's data. The teacher's outputs are put in the order of the
      run's classes.
  """
  teacher = task.teacher
  if teacher is None:
    return {}
  if is_weights(teacher.source):
    return {CONSTANT: _from_file(teacher, info)}
  loaded = load(teacher.source)
  _check_data(teacher, loaded.settings, settings)
  where = f"task.teacher={teacher.source!r}"
  warn_of_seen_examples(loaded, where, settings, info.fingerprint)
  tree.check_match(tree.name_leaves(loaded.variables), init_shapes(teacher), where)
  return {CONSTANT: _order_classes(loaded, teacher, info)}


def _order_classes(loaded: Loaded, teacher: Teacher, info: DatasetInfo) -> dict[str, Any]:
  """Returns a teacher's variables with its heads' columns in the order of the run's classes."""
  if info.class_names is None or not teacher.needs_head:
    return loaded.variables
  known = loaded.class_names if loaded.knows_class_names else None
  indices = find_in_weights(info, teacher.source, known, len(loaded.class_names))
  if isinstance(indices, str):
    raise ConfigError(
      f"task.teacher={teacher.source!r} does not have this run's classes: {indices}."
    )
  params = {
    name: x[..., indices] if names.is_head(name) else x
    for name, x in tree.name_arrays(loaded.variables["params"]).items()
  }
  return {**loaded.variables, "params": tree.fill(loaded.variables["params"], params)}


def check_teacher(teacher: Teacher, settings: RunSettings, phase: Any = None) -> None:
  """Checks a teacher of a run with resolved `settings`, without reading the teacher's weights.

  If the teacher is an earlier phase of the run, `phase` is that phase's experiment.
  """
  shapes = init_shapes(teacher)
  if phase is not None:
    _check_data(teacher, phase.settings, settings)
    variables = phase.variables(phase.named_shapes())
    tree.check_match(tree.name_leaves(variables), shapes, f"task.teacher={teacher.source!r}")
  elif is_weights(teacher.source):
    check_weights(teacher.source, shapes, _fit_teacher(teacher))
  else:
    _check_data(teacher, read_run_settings(teacher.source), settings)


def _check_data(teacher: Teacher, teacher_run: RunSettings, settings: RunSettings) -> None:
  """Checks that the images of a teacher's training were prepared like the images of this run."""
  for field in teacher.agree:
    before, now = teacher_run.data[field], settings.data[field]
    if before != now:
      raise ConfigError(
        f"task.teacher={teacher.source!r} was trained with data.{field}={before!r}, but this run"
        f" has {now!r}. Set data.{field}={before!r}."
      )


def _from_file(teacher: Teacher, info: DatasetInfo) -> dict[str, Any]:
  """Returns a teacher's variables from a file of published weights."""
  variables = jax.jit(lambda key: init_variables(teacher, key))(jax.random.key(0))
  match = _make_finder(info, teacher.source) if teacher.needs_head else None
  return initial_variables(teacher.source, variables, _fit_teacher(teacher, match))


def _fit_teacher(teacher: Teacher, match_classes: MatchClasses | None = None) -> Fit:
  """Returns the conditions under which a file has the weights of a teacher."""
  return Fit(
    network=teacher.model,
    layout=find_layout(teacher),
    new_head=not teacher.needs_head,
    match_classes=match_classes,
  )
