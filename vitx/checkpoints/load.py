"""Loads a trained model from its workdir."""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import flax.linen as nn
from absl import logging
from ml_collections import ConfigDict

from vitx.checkpoints import tree
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.store import Checkpoint, CheckpointStore
from vitx.config import registry
from vitx.config.checks import check_choice
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings, read_settings, without_lora
from vitx.config.settings import to_config
from vitx.ops.implementation import current_rule
from vitx.tasks import TASKS, build_task
from vitx.tasks.base import Task, init_shapes
from vitx.tasks.settle import Settled

CHOICES = ("best", "latest")
WEIGHTS = ("ema", "raw")
WANTED = ("params", "ema", "model_state")  # parts of the training state; "opt_state" is not read
# Sections on which a task of vitx itself depends.
TASK_SECTIONS = ("model", "task", "data", "evaluation", "augment")
TASKS_KEPT, PROGRAMS_KEPT = 16, 8  # the most tasks per process and programs per task

T = TypeVar("T")
# A function of a run's settings, its task, the shapes of the network's variables and the trained
# parameters, which returns all parameters of the network, with adapters merged into them.
AddBase = Callable[[RunSettings, Task, dict[str, Any], Any], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded(Settled):
  """A trained model with its settings, task and weights.

  Attributes:
    settings: The settings of the run. Relative paths of its data count from the folder of the
      training, and are absolute here if that is another folder.
    task: The task that the model learned, which has the network, prepares the network's inputs and
      names its predictions.
    variables: The network's variable collections by name, such as "params", with the weights that
      the caller of `load` chose.
    data: The run's record of its data, with the keys source, fingerprint, class_names, vocabulary.
    step: The step of the checkpoint.
    workdir: The workdir of the run, or the repository of the model.
    programs: The compiled programs of the task, see `program`; models with equal configs share
      them.
  """

  variables: dict[str, Any]
  data: Mapping[str, Any]
  step: int
  workdir: str
  programs: dict[Hashable, tuple[Task, Any]] = dataclasses.field(default_factory=dict, repr=False)

  @functools.cached_property
  def config(self) -> ConfigDict:
    """Returns the resolved config of the run, a copy of the settings that can be changed."""
    return to_config(self.settings)

  def with_task(self, settings: RunSettings) -> "Loaded":
    """Returns a copy of this model whose task is built from other settings.

    The copy keeps the weights and `self.settings`.

    Args:
      settings: The settings of the task, such as `change(self.settings, ...)`.

    Raises:
      ShapeMismatch: The network of the other settings has other parameters than `self.variables`.
    """
    task, programs = build_once(settings)
    where = f"the model of {self.workdir}"
    tree.check_match(tree.name_leaves(self.variables), init_shapes(task), where)
    return dataclasses.replace(self, task=task, programs=programs)

  def program(self, name: Hashable, make: Callable[[], T]) -> T:
    """Returns a compiled program, which is made at the first call and then kept for later calls.

    Args:
      name: The name of the program; together with the task, it must determine the program.
      make: A function that compiles the program, called if no program is kept under `name`.
    """
    entry = self.programs.pop(name, None)
    if entry is None or entry[0] is not self.task:
      entry = self.task, make()
    _put_last(self.programs, name, entry, PROGRAMS_KEPT)
    return entry[1]

  @property
  def model(self) -> nn.Module:
    """Returns the network; call `model.apply(variables, inputs)` with inputs from the task."""
    return self.task.model

  @property
  def class_names(self) -> tuple[str, ...]:
    """Returns the names of the classes; () if the data have none."""
    return tuple(self.data.get("class_names") or ())

  @property
  def knows_class_names(self) -> bool:
    """Returns False if the classes are only numbered, as in weights converted without data."""
    return bool(self.fingerprint) or self.class_names != tuple(
      map(str, range(len(self.class_names)))
    )

  @property
  def fingerprint(self) -> str:
    """Returns the fingerprint (a digest) of the training data; "" if the data are unknown."""
    return self.data["fingerprint"]


def load(
  workdir: str | Path,
  checkpoint: str | int = "best",
  *,
  weights: str | None = None,
  trust_code: bool = False,
  add_base: AddBase | None = None,
) -> Loaded:
  """Restores a trained model from the workdir of a run.

  `vitx.load`, which also reads repositories, describes the other arguments and the errors.
  `add_base` is needed for a run with adapters, whose checkpoints lack the other parameters.
  """
  workdir = wd.find_run(workdir)
  config, data = wd.read_run(workdir)

  def read(settings: RunSettings, task: Task, shapes: dict[str, Any]) -> tuple[dict[str, Any], int]:
    restored = _read(workdir, checkpoint)
    state = restored.state
    chose_best = config.get("evaluation", {}).get("weights") or WEIGHTS
    params = _choose_params(state, weights, chose_best[0])
    if "lora" in settings.model:
      assert add_base is not None
      params = add_base(settings, task, shapes, params)
    variables = {"params": params, **state.get("model_state", {})}
    where = f"checkpoint {restored.step} of {workdir}"
    tree.check_match(tree.name_leaves(variables), shapes, where)
    return variables, restored.step

  return assemble(workdir, config, data, read, trust_code=trust_code)


def assemble(
  place: str,
  config: Mapping[str, Any],
  data: Mapping[str, Any],
  read: Callable[[RunSettings, Task, dict[str, Any]], tuple[dict[str, Any], int]],
  *,
  trust_code: bool,
) -> Loaded:
  """Returns a trained model from its stored parts.

  Args:
    place: The workdir or the repository that has the model, for errors.
    config: The resolved config of the run, as JSON values.
    data: The run's record of its data.
    read: A function that takes the settings, the task and the shapes of the model's variables, and
      returns the variables and their step. It is called after the config has been checked. Adapters
      are merged into the variables, and the settings of the result have none.
    trust_code: Whether the config may name code outside vitx (`module:Name`), which is imported.
  """
  try:
    with registry.trusting(trust_code):
      settings = read_settings(config)
      plain = without_lora(settings)
      task, programs = build_once(plain)
      shapes = init_shapes(task)
  except ConfigError as error:
    raise ConfigError(f"the config of {place!r}: {error}") from error
  except Exception as error:
    error.add_note(f"while the config of {place!r} was read")
    raise
  with registry.trusting(trust_code):  # the base of adapters may be a run that names code too
    variables, step = read(settings, task, shapes)
  _check_class_names(data, task, place)
  return Loaded(
    settings=plain,
    task=task,
    variables=variables,
    data=data,
    step=step,
    workdir=place,
    programs=programs,
  )


def _check_class_names(data: Mapping[str, Any], task: Task, workdir: str | Path) -> None:
  """Checks that a record of data, perhaps from somebody else, names each class of the model."""
  count, names = getattr(task, "num_classes", None), data.get("class_names")
  if count is not None and names is not None and len(names) != count:
    raise ConfigError(
      f"workdir={str(workdir)!r}: data.class_names has {len(names)} names, and the model has"
      f" {count} classes."
    )


def build_once(settings: RunSettings) -> tuple[Task, dict[Hashable, tuple[Task, Any]]]:
  """Returns the task of resolved settings, and the dict of the task's compiled programs.

  Both are kept for later calls with equal settings, so a process that loads, evaluates or predicts
  in a loop compiles once. The number of kept tasks is limited, because compiled programs occupy
  memory and memory maps; Linux allows a process 65,530 maps.
  """
  key = _make_key(settings)
  built = _BUILT.pop(key, None)
  if built is None:
    built = build_task(settings), {}
    key = _make_key(settings)  # building has imported the code on which the key depends
  _put_last(_BUILT, key, built, TASKS_KEPT)
  return built


_BUILT: dict[Hashable, tuple[Task, dict[Hashable, tuple[Task, Any]]]] = {}


def _put_last(entries: dict, key: Hashable, value: Any, most: int) -> None:
  """Puts an entry last in a dict, and deletes the first ones until at most `most` remain."""
  entries[key] = value
  while len(entries) > most:
    del entries[next(iter(entries))]


def _make_key(settings: RunSettings) -> Hashable:
  """Returns a key that contains everything on which the task of the settings depends."""
  plain = wd.to_plain(settings)
  if str(plain["task"]["name"]) in TASKS:
    plain = {name: plain[name] for name in TASK_SECTIONS if name in plain}
  text = json.dumps(plain, sort_keys=True)
  rule = json.dumps(current_rule().to_json(), sort_keys=True)
  return text, tuple(_find_code(plain)), rule


def _find_code(plain: Any) -> Iterator[Any]:
  """Yields the object to which each `module:Name` in a config refers now; None if not imported.

  A task is kept under a key with these objects, because a notebook may define one of them again,
  and with whether they are allowed, because a later call may not trust them.
  """
  if isinstance(plain, dict | list):
    for value in plain.values() if isinstance(plain, dict) else plain:
      yield from _find_code(value)
  elif isinstance(plain, str) and ":" in plain:
    module, _, name = plain.partition(":")
    code: Any = sys.modules.get(module)
    for part in name.split("."):
      code = getattr(code, part, None)
    yield code if isinstance(code, Hashable) else id(code), registry.is_allowed(plain)


def _choose_params(state: Mapping[str, Any], weights: str | None, chose_best: str) -> Any:
  """Returns the moving average of the parameters in a state, or the raw ones if it has none."""
  if weights is not None:
    check_choice(weights, "weights", WEIGHTS)
    if weights == "ema" and "ema" not in state:
      raise ConfigError("weights='ema': the run kept no moving average; leave weights out.")
  raw = (weights or chose_best) == "raw"
  return state["params"] if raw else state.get("ema", state["params"])


def _read(workdir: str | Path, checkpoint: str | int) -> Checkpoint:
  with CheckpointStore(wd.locate_checkpoints(workdir), read_only=True) as store:
    choice = str(checkpoint)
    if choice not in CHOICES:
      check_choice(choice, "checkpoint", (*CHOICES, *map(str, store.steps())))
      return store.restore(int(choice), only=WANTED)
    latest = store.restore_latest(only=WANTED)
    if latest is None:
      raise ConfigError(f"workdir={str(workdir)!r} has no checkpoint yet; let its run save one.")
    best = latest.record.get("best_step")
    if choice == "latest" or best in (None, latest.step):
      return latest
    if best not in store.steps():  # a better one is damaged
      logging.warning(
        "the best checkpoint, %d, does not exist any more; %d is read", best, latest.step
      )
      return latest
    return store.restore(best, only=WANTED)
