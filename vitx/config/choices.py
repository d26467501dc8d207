"""Describes named choices, such as optimizers, by records that are JSON values.

The fields of a choice are declared in a module that imports JAX, Flax or optax, which takes a
second. A command that only reads a config can do without: within `known`, the records of all
choices that ship with vitx replace their modules.
"""

import contextvars
import inspect
import math
import re
import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from vitx.config import registry
from vitx.config.checks import Range, base_types
from vitx.config.context import assigned
from vitx.config.fields import named_choices

ChoiceRecord = Mapping[str, Any]
# The records of choices by "FIELD=NAME", such as "model.token_mixer=softmax"; see `known`.
_known: contextvars.ContextVar[Mapping[str, ChoiceRecord]] = contextvars.ContextVar("known")


def known(records: Mapping[str, ChoiceRecord]) -> AbstractContextManager[None]:
  """Lets a `with` block use the records that `record_all` returned, in place of modules."""
  return assigned(_known, records)


def find(field: str, name: str, model: str = "") -> ChoiceRecord:
  """Returns the record of a named choice.

  Args:
    field: The field of the config, such as "optimizer" or "model.token_mixer".
    name: The name of the choice.
    model: The name of the model, for a part of the model such as "model.token_mixer".

  Returns:
    A dict with the choice's `fields` by name, each with its `kind` as text, the names of its
    `types`, and its `default` if it is a JSON value; their `meanings`; the first line of its `doc`;
    the `names` of all choices; for a model its `parts`, each with its default choice and with the
    fields that the model sets; and for positions the `mixer_fields` that they set in mixers.

  Raises:
    ConfigError: There is no such choice.
  """
  is_shipped = ":" not in f"{name}{model}"
  record = _known.get({}).get(f"{field}={name}") if is_shipped else None
  return record or _record(_table_of(field, model), name, field)


def record_all() -> dict[str, ChoiceRecord]:
  """Returns the records of all choices that ship with vitx, by "FIELD=NAME"."""
  models = registry.table_of("model")
  tables = {field: registry.table_of(field) for field in named_choices()}
  for model in models:
    parts = getattr(models[model], "PARTS", {})
    tables |= {f"model.{part}": table for part, (table, _, _) in parts.items()}
  return {
    f"{field}={name}": _record(table, name, field)
    for field, table in tables.items()
    for name in table
  }


def _table_of(field: str, model: str) -> Mapping[str, Any]:
  if field in named_choices():
    return registry.table_of(field)
  owner = registry.lookup(registry.table_of("model"), model, "model.name")
  return owner.PARTS[field.removeprefix("model.")][0]


def _record(table: Mapping[str, Any], name: str, field: str) -> ChoiceRecord:
  from jax.typing import DTypeLike

  entry = registry.lookup(table, name, f"{field}.name")
  function = registry.function_of(entry)
  fields = {}
  for key, option in registry.options(function).items():
    kind = option.annotation
    dtypes = " | ".join(registry.table_of("model.dtype")) if kind == DTypeLike else ""
    fields[key] = {
      "kind": dtypes or show_kind(kind),
      "types": [t.__name__ for t in base_types(kind)],
    }
    default = _to_name(option.default)
    fields[key] |= {"default": to_plain(default)} if _is_plain(default) else {}
  fields.pop("name", None)
  parts = getattr(entry, "PARTS", {}).items()
  has_mixer_fields = hasattr(entry, "mixer_fields")
  return {
    "fields": fields,
    "meanings": read_meanings(function),
    "doc": (inspect.getdoc(entry) or "").partition("\n")[0],
    "names": " | ".join(sorted(table)),
    "parts": {part: [default, list(hidden)] for part, (_, default, hidden) in parts},
    "mixer_fields": list(entry(parent=None).mixer_fields) if has_mixer_fields else [],
  }


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


def to_plain(value: Any) -> Any:
  """Returns a value of a config as a JSON value."""
  if hasattr(value, "keys"):
    return {key: to_plain(entry) for key, entry in value.items()}
  return [to_plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def show_kind(annotation: Any) -> str:
  """Formats a declared type: "int in [1, 1000]", "center | squash", "float or None"."""
  origin, arguments = get_origin(annotation), get_args(annotation)
  if annotation in (inspect.Parameter.empty, Any):
    return ""
  if annotation in (None, type(None)):
    return "None"
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
