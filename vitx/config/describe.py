"""Every field of a config: its value, what it takes and what it means.

A config says what differs from the defaults of the named choices (`model`, `optimizer`, ...);
`complete` says all. Types and defaults stand in the signatures of the classes and functions that
the names stand for, meanings in their docstrings and in the comments of `configs/common.py`.
"""

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from jax.typing import DTypeLike
from ml_collections import ConfigDict

from vitx.config.checks import Range
from vitx.config.registry import fields_of, lookup, options
from vitx.configs import __path__ as configs
from vitx.data.settings import DataSettings
from vitx.models import DTYPES, MODELS
from vitx.tasks import task_class
from vitx.training.fields import FIELDS
from vitx.training.optim.optimizers import OPTIMIZERS
from vitx.training.optim.schedules import SCHEDULES
from vitx.training.record.trackers import TRACKERS

# Set by the model from other fields, if the config does not.
FOLLOWING = ("seed",)


@dataclasses.dataclass(frozen=True)
class Described:
  """A field.

  Attributes:
    value: of the config, or the default; JSON.
    kind: what it takes, for reading; "" if that is not declared.
    meaning: in a few words; "" if nobody wrote them.
  """

  value: Any
  kind: str = ""
  meaning: str = ""


def complete(config: ConfigDict) -> dict[str, Any]:
  """Returns the whole config as JSON has it, with every field of its named choices."""
  tree: dict[str, Any] = {}
  for path, described in describe(config).items():
    *parents, last = path.split(".")
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = described.value
  tree["phases"] = _plain(config.phases)  # one that changes nothing has no field
  return tree


def describe(config: ConfigDict) -> dict[str, Described]:
  """Returns every field by its path, in the order of `configs/common.py`.

  Raises:
    ConfigError: a named choice that is unknown.
  """
  found: dict[str, Described] = {}
  comments = _comments(Path(configs[0]) / "common.py")
  kinds = FIELDS | _section_kinds(config)
  for section in _order_sections(config, comments):
    if section == "model":
      found |= _model(config.model)
    elif section == "task":
      task = task_class(config.task)
      found |= _choice(section, config.task, {config.task.name: task.from_config}, ("config",))
      found["task.name"] = Described(config.task.name, "", first_line(task))
    elif section in CHOICES:
      found |= _choice(section, config[section], *CHOICES[section])
    else:
      found |= dict(_plain_fields(section, config[section], comments, kinds))
  return found


def _section_kinds(config: ConfigDict) -> dict[str, Any]:
  """Returns the declared types of the sections that are no named choice, by path."""
  sections = {"data": [DataSettings]}
  for section, declared in task_class(config.task).sections.items():
    sections.setdefault(section, []).append(declared)
  return {
    f"{section}.{name}": field.annotation
    for section, classes in sections.items()
    for declared in classes
    for name, field in options(declared).items()
  }


def _order_sections(config: ConfigDict, comments: Mapping[str, str]) -> list[str]:
  order = list(dict.fromkeys(path.split(".")[0] for path in comments))
  return sorted(config, key=lambda name: order.index(name) if name in order else len(order))


def _plain_fields(
  path: str, value: Any, comments: Mapping[str, str], kinds: Mapping[str, Any]
) -> Iterator[tuple[str, Described]]:
  if isinstance(value, ConfigDict):
    names = [name for name in comments if name.startswith(f"{path}.")]
    own = [name.removeprefix(f"{path}.").split(".")[0] for name in names]
    for key in dict.fromkeys([*(key for key in own if key in value), *value]):
      yield from _plain_fields(f"{path}.{key}", value[key], comments, kinds)
  else:
    kind = show_kind(kinds.get(path, type(value)))
    yield path, Described(_plain(value), kind, comments.get(path, ""))


def _model(model: ConfigDict) -> dict[str, Described]:
  """Describes the fields of a model and of its parts."""
  made = lookup(MODELS, model.name, "model.name")
  parts = getattr(made, "PARTS", {})
  own = {key: value for key, value in model.items() if key not in parts}
  found = _choice("model", own, MODELS, ())
  for part, (table, default, hidden) in parts.items():
    spec = model.get(part, default)
    if part == "token_mixer":
      hidden = (*hidden, *FOLLOWING, *_set_by_positions(model, parts))
    found |= _choice(f"model.{part}", spec, table, hidden)
  return found


def _set_by_positions(model: ConfigDict, parts: Mapping[str, tuple]) -> tuple[str, ...]:
  """Returns the mixer's fields that the positions set, which a config may not set again."""
  table, default, _ = parts["posemb"]
  name, fields = _name_and_fields(model.get("posemb", default))
  posemb = lookup(table, name, "model.posemb.name")
  return tuple(getattr(posemb(**fields, parent=None), "mixer_fields", {}))


def _choice(
  path: str, spec: Any, table: Mapping[str, Any], hidden: tuple[str, ...]
) -> dict[str, Described]:
  """Describes a named choice: name, what the config says of it, and the other defaults."""
  name, given = _name_and_fields(spec)
  function = lookup(table, name, f"{path}.name")
  own = {key: field for key, field in options(function).items() if key != "name"}
  meanings = read_meanings(function)
  found = {f"{path}.name": Described(name, "", first_line(function))}
  for key in dict.fromkeys([*own, *given]):
    field = own.get(key)
    default = inspect.Parameter.empty if field is None else field.default
    if key not in given and (key in hidden or not _is_plain(_to_name(default))):
      continue
    value = _plain(given.get(key, _to_name(default)))
    kind = "" if field is None else show_kind(field.annotation)
    found[f"{path}.{key}"] = Described(value, kind, meanings.get(key, ""))
  return found


def _name_and_fields(spec: Any) -> tuple[str, dict[str, Any]]:
  fields = fields_of(spec)
  return fields.pop("name"), fields


def _to_name(value: Any) -> Any:
  """Returns the name of a dtype, and anything else as it is."""
  return next((name for name, dtype in DTYPES.items() if value is dtype), value)


def _is_plain(value: Any) -> bool:
  if isinstance(value, tuple | list):
    return all(map(_is_plain, value))
  if isinstance(value, float):
    return math.isfinite(value)
  return value is None or isinstance(value, bool | int | str)


def _plain(value: Any) -> Any:
  if isinstance(value, ConfigDict | Mapping):
    return {key: _plain(entry) for key, entry in value.items()}
  return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def show_kind(annotation: Any) -> str:
  """Returns a declared type for reading: "int in [1, 1000]", "center | squash", "float or None"."""
  origin, arguments = get_origin(annotation), get_args(annotation)
  if annotation in (inspect.Parameter.empty, Any):
    return ""
  if annotation in (None, type(None)):
    return "None"
  if annotation == DTypeLike:
    return " | ".join(DTYPES)
  if origin is Literal:
    return " | ".join(map(str, arguments))
  if origin is Annotated:
    ranges = [note.interval for note in arguments[1:] if isinstance(note, Range)]
    return " in ".join([show_kind(arguments[0]), *ranges])
  if origin in (Union, types.UnionType):
    return " or ".join(map(show_kind, arguments))
  if origin is not None:
    inner = ", ".join("..." if entry is ... else show_kind(entry) for entry in arguments)
    return f"{getattr(origin, '__name__', origin)}[{inner}]"
  return getattr(annotation, "__name__", str(annotation))


def first_line(function: Any) -> str:
  """Returns the first line of a docstring."""
  return (inspect.getdoc(function) or "").split("\n")[0]


def read_meanings(function: Callable) -> dict[str, str]:
  """Returns what the docstring of a class (and of its bases) or a function says of each field."""
  owners = reversed(function.__mro__) if isinstance(function, type) else [function]
  found: dict[str, str] = {}
  for owner in owners:
    found |= _entries(inspect.cleandoc(owner.__doc__ or ""))
  return found


def _entries(text: str) -> dict[str, str]:
  """Returns the entries under "Attributes:" and "Args:" of a docstring, each in one line."""
  found: dict[str, str] = {}
  for block in re.findall(r"^(?:Attributes|Args):\n((?:[ \t]+.*\n?|\n)*)", text, re.MULTILINE):
    for names, meaning in re.findall(r"^  (\w[\w, ]*): (.*(?:\n {4,}.*)*)", block, re.MULTILINE):
      found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
  return found


def _comments(path: Path) -> dict[str, str]:
  """Returns the comment beside each field of `default_config`, by the field's path."""
  body = path.read_text(encoding="utf-8").partition("def default_config")[2].partition("\ndef ")[0]
  found: dict[str, str] = {}
  groups: list[str] = []
  for line in body.splitlines():
    code, _, comment = line.partition("  # ")
    if match := re.match(r"  config\.([\w.]+) = (ConfigDict\($)?", code):
      groups = [match[1]] if match[2] else []
      found[match[1]] = comment.strip()
    elif match := re.match(r"\s+(\w+)=(dict\($)?(?!=)", code):
      found[".".join([*groups, match[1]])] = comment.strip()
      groups += [match[1]] if match[2] else []
    elif re.match(r"      \),?$", code):
      groups = groups[:1]
  return found


# The named choices outside the model: their tables, and what is no field of a config.
CHOICES: dict[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
  "optimizer": (OPTIMIZERS, ("decay_mask", "learning_rate", "mask")),
  "schedule": (SCHEDULES, ("run",)),
  "tracking": (TRACKERS, ("run",)),
}
