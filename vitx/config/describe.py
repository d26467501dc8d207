"""Describes every field of a config: its value, its type and its meaning.

A named choice is a field such as `model` or `optimizer`, whose value is a name with fields of its
own. A config need not contain the fields of a choice that have their defaults; `complete` adds
them. Types, defaults and meanings of most fields come from `vitx.config.fields`. Those of a named
choice come from the signature and docstring of the class or function to which the name refers.
"""

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from flax.traverse_util import unflatten_dict
from jax.typing import DTypeLike
from ml_collections import ConfigDict

from vitx.config import registry
from vitx.config.checks import Range
from vitx.config.fields import MISSING, find, named_choices, walk

# The model sets the arguments in SET_BY_MODEL from other fields; training passes those in HIDDEN to
# the functions of optax.
SET_BY_MODEL = ("seed",)
HIDDEN = ("decay_mask", "learning_rate", "mask")


@dataclasses.dataclass(frozen=True)
class Description:
  """The description of a field.

  Attributes:
    value: The value in the config, or the default if the config has none, as a JSON value.
    kind: The declared type in readable form, or the names of a named choice that ship with vitx; ""
      if there is neither.
    meaning: The meaning in a few words; "" if no docstring explains the field.
  """

  value: Any
  kind: str = ""
  meaning: str = ""


def complete(config: ConfigDict) -> dict[str, Any]:
  """Returns the whole config as a JSON tree, with every field of named choices like `optimizer`."""
  values = {path: described.value for path, described in describe(config).items()}
  tree: dict[str, Any] = unflatten_dict(values, sep=".")
  # `describe` has no field for a phase that changes nothing.
  tree["phases"] = _plain(config.get("phases", {}))
  return tree


def describe(config: ConfigDict) -> dict[str, Description]:
  """Returns the description of every field by its path, in the order of `vitx.config.fields`."""
  found: dict[str, Description] = {}
  choices = named_choices()
  for path, section, each in walk():
    value = find(config, path)
    if value is MISSING:
      continue
    if path == "model":
      found |= _model(value)
    elif path in choices:
      found |= _choice(path, value, registry.import_name(choices[path].name), HIDDEN)
    else:
      described = Description(None, show_kind(each.type), read_meanings(section)[each.name])
      found |= _leaves(path, value, described)
  sections = (_leaves(key, config[key], Description(None)) for key in config if key not in choices)
  leaves = {path: leaf for section in sections for path, leaf in section.items()}
  # The leaves that are not found yet are fields that the user has added.
  return found | {path: leaf for path, leaf in leaves.items() if path not in found}


def _leaves(path: str, value: Any, described: Description) -> dict[str, Description]:
  """Returns the description of a field, or those of all fields in a group, by path.

  Args:
    path: The path of the field or group.
    value: The value of the field, or a ConfigDict for a group.
    described: The declared type and meaning of the field; the fields of a group have none.
  """
  if not isinstance(value, ConfigDict):
    kind = described.kind or show_kind(type(value))
    return {path: dataclasses.replace(described, value=_plain(value), kind=kind)}
  inner = (_leaves(f"{path}.{key}", value[key], Description(None)) for key in value)
  return {name: leaf for leaves in inner for name, leaf in leaves.items()}


def _model(model: ConfigDict) -> dict[str, Description]:
  """Describes the fields of a model and of its parts, such as `token_mixer`, by path."""
  models = registry.import_name("vitx.models:MODELS")
  parts = getattr(registry.lookup(models, model.name, "model.name"), "PARTS", {})
  own = {key: value for key, value in model.items() if key not in parts}
  found = _choice("model", own, models, ())
  for part, (table, default, hidden) in parts.items():
    spec = model.get(part, default)
    if part == "token_mixer":
      hidden = (*hidden, *SET_BY_MODEL, *_list_posemb_fields(model, parts))
    found |= _choice(f"model.{part}", spec, table, hidden)
  return found


def _list_posemb_fields(model: ConfigDict, parts: Mapping[str, tuple]) -> tuple[str, ...]:
  """Returns the names of the mixer's fields that the position embedding sets, not the config."""
  table, default, _ = parts["posemb"]
  name, fields = _name_and_fields(model.get("posemb", default))
  posemb = registry.lookup(table, name, "model.posemb.name")
  return tuple(getattr(posemb(**fields, parent=None), "mixer_fields", {}))


def _choice(
  path: str, spec: Any, table: Mapping[str, Any], hidden: tuple[str, ...]
) -> dict[str, Description]:
  """Describes the name and the fields of a named choice, by path.

  Args:
    path: The path of the choice, such as "optimizer".
    spec: The value of the choice in the config.
    table: The built-in choices by name.
    hidden: The names of fields to leave out, unless the config sets them.
  """
  name, given = _name_and_fields(spec)
  entry = registry.lookup(table, name, f"{path}.name")
  function = registry.function_of(entry)
  own = {key: field for key, field in registry.options(function).items() if key != "name"}
  meanings = read_meanings(function)
  first_line = (inspect.getdoc(entry) or "").partition("\n")[0]
  found = {f"{path}.name": Description(name, " | ".join(sorted(table)), first_line)}
  for key in dict.fromkeys([*own, *given]):
    field = own.get(key)
    default = inspect.Parameter.empty if field is None else field.default
    if key not in given and (key in hidden or not _is_plain(_to_name(default))):
      continue
    value = _plain(given.get(key, _to_name(default)))
    kind = "" if field is None else show_kind(field.annotation)
    found[f"{path}.{key}"] = Description(value, kind, meanings.get(key, ""))
  return found


def _name_and_fields(spec: Any) -> tuple[str, dict[str, Any]]:
  fields = registry.fields_of(spec)
  return fields.pop("name"), fields


def _to_name(value: Any) -> Any:
  """Returns the name of a dtype, and any other value unchanged."""
  return next((name for name, dtype in _dtypes().items() if value is dtype), value)


def _dtypes() -> dict[str, Any]:
  return registry.import_name("vitx.models:DTYPES")


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
  """Formats a declared type: "int in [1, 1000]", "center | squash", "float or None"."""
  origin, arguments = get_origin(annotation), get_args(annotation)
  if annotation in (inspect.Parameter.empty, Any):
    return ""
  if annotation in (None, type(None)):
    return "None"
  if annotation == DTypeLike:
    return " | ".join(_dtypes())
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


def read_meanings(function: Callable) -> dict[str, str]:
  """Returns the docstring's entry for each argument of a function, or each field of a class.

  The fields of base classes are included.
  """
  owners = reversed(function.__mro__) if isinstance(function, type) else [function]
  found: dict[str, str] = {}
  for owner in owners:
    found |= _entries(inspect.cleandoc(owner.__doc__ or ""))
  return found


def _entries(text: str) -> dict[str, str]:
  """Returns the entries under "Attributes:" and "Args:" in a docstring, joined to one line each."""
  found: dict[str, str] = {}
  for block in re.findall(r"^(?:Attributes|Args):\n((?:[ \t]+.*\n?|\n)*)", text, re.MULTILINE):
    for names, meaning in re.findall(r"^  (\w[\w, ]*): (.*(?:\n {4,}.*)*)", block, re.MULTILINE):
      found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
  return found
