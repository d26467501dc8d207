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


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the whole config as a JSON tree, with every field of named choices like `optimizer`."""
  values = {path: described.value for path, described in describe(config).items()}
  tree: dict[str, Any] = unflatten_dict(values, sep=".")
  # `describe` has no field for a phase that changes nothing.
  tree["phases"] = _plain(config.get("phases", {}))
  return tree


def describe(config: Mapping[str, Any]) -> dict[str, Description]:
  """Returns the description of every field by its path, in the order of `vitx.config.fields`."""
  descriptions: dict[str, Description] = {}
  choices = named_choices()
  for path, section, field in walk():
    value = find(config, path)
    if value is MISSING:
      continue
    if path == "model":
      descriptions |= _model(value)
    elif path in choices:
      descriptions |= _choice(path, value, registry.table_of(path), HIDDEN)
    else:
      described = Description(None, show_kind(field.type), read_meanings(section)[field.name])
      descriptions |= _leaves(path, value, described)
  for key in config:
    if key not in choices:  # the leaves without a description are fields that the user has added
      for path, leaf in _leaves(key, config[key], Description(None)).items():
        descriptions.setdefault(path, leaf)
  return descriptions


def _leaves(path: str, value: Any, described: Description) -> dict[str, Description]:
  """Returns the description of a field, or those of all fields in a group, by path."""
  if not hasattr(value, "keys"):
    kind = described.kind or show_kind(type(value))
    return {path: dataclasses.replace(described, value=_plain(value), kind=kind)}
  inner = (_leaves(f"{path}.{key}", value[key], Description(None)) for key in value)
  return {name: leaf for leaves in inner for name, leaf in leaves.items()}


def _model(model: Mapping[str, Any]) -> dict[str, Description]:
  """Describes the fields of a model and of its parts, such as `token_mixer`, by path."""
  models = registry.table_of("model")
  parts = getattr(registry.lookup(models, model["name"], "model.name"), "PARTS", {})
  fields = {key: value for key, value in model.items() if key not in parts}
  descriptions = _choice("model", fields, models, ())
  for part, (table, default, hidden) in parts.items():
    spec = model.get(part, default)
    if part == "token_mixer":
      hidden = (*hidden, *SET_BY_MODEL, *_list_posemb_fields(model, parts))
    descriptions |= _choice(f"model.{part}", spec, table, hidden)
  return descriptions


def _list_posemb_fields(model: Mapping[str, Any], parts: Mapping[str, tuple]) -> tuple[str, ...]:
  """Returns the names of the mixer's fields that the position embedding sets, not the config."""
  table, default, _ = parts["posemb"]
  name, fields = _name_and_fields(model.get("posemb", default))
  posemb = registry.lookup(table, name, "model.posemb.name")
  return tuple(getattr(posemb(**fields, parent=None), "mixer_fields", {}))


def _choice(
  path: str, spec: Any, table: Mapping[str, Any], hidden: tuple[str, ...]
) -> dict[str, Description]:
  """Describes the name and the fields of a named choice, by path.

  Fields in `hidden` are left out, unless the config sets them.
  """
  name, values = _name_and_fields(spec)
  entry = registry.lookup(table, name, f"{path}.name")
  function = registry.function_of(entry)
  declared = {key: field for key, field in registry.options(function).items() if key != "name"}
  meanings = read_meanings(function)
  first_line = (inspect.getdoc(entry) or "").partition("\n")[0]
  descriptions = {f"{path}.name": Description(name, " | ".join(sorted(table)), first_line)}
  for key in dict.fromkeys([*declared, *values]):
    field = declared.get(key)
    default = inspect.Parameter.empty if field is None else field.default
    if key not in values and (key in hidden or not _is_plain(_to_name(default))):
      continue
    value = _plain(values.get(key, _to_name(default)))
    kind = "" if field is None else show_kind(field.annotation)
    descriptions[f"{path}.{key}"] = Description(value, kind, meanings.get(key, ""))
  return descriptions


def _name_and_fields(spec: Any) -> tuple[str, dict[str, Any]]:
  fields = registry.fields_of(spec)
  return fields.pop("name"), fields


def _to_name(value: Any) -> Any:
  """Returns the name of a dtype, and any other value unchanged."""
  return next(
    (name for name, dtype in registry.table_of("model.dtype").items() if value is dtype), value
  )


def _is_plain(value: Any) -> bool:
  if isinstance(value, tuple | list):
    return all(map(_is_plain, value))
  if isinstance(value, float):
    return math.isfinite(value)
  return value is None or isinstance(value, bool | int | str)


def _plain(value: Any) -> Any:
  if hasattr(value, "keys"):
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
    return " | ".join(registry.table_of("model.dtype"))
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
  meanings: dict[str, str] = {}
  for owner in owners:
    text = inspect.cleandoc(owner.__doc__ or "")
    for block in re.findall(r"^(?:Attributes|Args):\n((?:[ \t]+.*\n?|\n)*)", text, re.MULTILINE):
      for names, meaning in re.findall(r"^  (\w[\w, ]*): (.*(?:\n {4,}.*)*)", block, re.MULTILINE):
        meanings |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
  return meanings
