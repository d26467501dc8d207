"""Finds the class or function that a named choice of a config refers to.

A named choice is a value such as `dict(name="softmax", ...)`. An unknown name or field raises
ConfigError, which lists the valid ones and the nearest; none is dropped silently.

A name `module:Name` imports code. So a config that somebody else wrote is read in a `with` block of
`trusting(False)`, which allows only names in our tables and names of code that the user's own
config has imported already. The user's own config is read without `trusting(False)`, and the code
that it names is imported. Other files of strangers can name code too, such as the feature classes
of a data set; this needs `trusting(True)`.
"""

import collections
import contextlib
import contextvars
import dataclasses
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from vitx.config.checks import check_fields
from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.fields import suggest

# The place of the table of a field's valid names, by the path of the field.
TABLES = {
  "data.source": "vitx.data.sources:SOURCES",
  "data.validation_choice": "vitx.data.splits:CHOICES",
  "model": "vitx.models:MODELS",
  "model.dtype": "vitx.models:DTYPES",
  "model.token_mixer.edges": "vitx.ops.patterns:PATTERNS",
  "optimizer": "vitx.training.optim.optimizers:OPTIMIZERS",
  "schedule": "vitx.training.optim.schedules:SCHEDULES",
  "task": "vitx.tasks:TASKS",
  "tracking": "vitx.training.record.trackers:TRACKERS",
}

# True: the user trusts foreign code. False: no foreign code runs. None: nobody has said either.
_trusted: contextvars.ContextVar[bool | None] = contextvars.ContextVar("trusted", default=None)
# The names of the user's own code that were imported in the outermost block of `trusting`.
_imported: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar(
  "imported", default=None
)


@contextlib.contextmanager
def trusting(allowed: bool | None) -> Iterator[None]:
  """Sets whether a `with` block may import code that a file from somebody else names.

  A name that the user's own config has given in the outermost block, such as a whole command, is
  allowed in every file, since its code has run already.

  Args:
    allowed: True after `--trust_code`; False for a config that somebody else may have written; None
      to change nothing. A block with False inside a block with True has no effect.
  """
  stated, imported = _trusted.get(), _imported.get()
  trusted_before = _trusted.set(stated if stated or allowed is None else allowed)
  imported_before = _imported.set(set() if imported is None else imported)
  try:
    yield
  finally:
    _trusted.reset(trusted_before)
    _imported.reset(imported_before)


def is_trusted() -> bool | None:
  """Returns the value that `trusting` set: True if the user allows foreign code to run."""
  return _trusted.get()


def is_allowed(name: str) -> bool:
  """Returns whether code of this name may be imported here, if a config names it."""
  return _trusted.get() is not False or _is_imported(name)


def _is_imported(name: str) -> bool:
  return name in (_imported.get() or ())


def reach_current_folder() -> None:
  """Adds the current folder to the end of `sys.path`, after the installed packages.

  Call this function only to import the user's own or trusted code. The current folder may be a
  stranger's, and Python must not find a missing optional package among its files.
  """
  if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())


def refuse_code(name: str, field: str) -> ConfigError:
  """Returns the error for a name of code that the user has not allowed to run."""
  return ConfigError(
    f"{field}={name!r} names Python code, which would run; if you trust its author, give"
    " --trust_code (in Python trust_code=True)."
  )


def refuse_names_of_code(
  tree: Any, field: str, is_text: Callable[[str, str], bool] = lambda field, value: False
) -> None:
  """Checks that a foreign config names no code that would be imported.

  Args:
    tree: Nested mappings and sequences.
    field: The path of the tree in the config, for the error.
    is_text: A function of a field's path and value that returns True if the value is never looked
      up as a name, so that it may contain a colon.
  """
  if hasattr(tree, "items"):
    for key, entry in tree.items():
      refuse_names_of_code(entry, f"{field}.{key}" if field else str(key), is_text)
  elif isinstance(tree, list | tuple):
    for entry in tree:
      refuse_names_of_code(entry, field, is_text)
  elif isinstance(tree, str) and ":" in tree and not (_is_imported(tree) or is_text(field, tree)):
    raise refuse_code(tree, field)


class Table(collections.UserDict[str, Any]):
  """A table of named choices that imports the module of a choice when the choice is looked up.

  Attributes:
    data: The place `module:Name` of each choice by the choice's name.
  """

  def __init__(self, package: str, /, **places: str):
    """Makes a table of the places of choices, such as `softmax="softmax:SoftmaxAttention"`."""
    super().__init__({name: f"{package}.{place}" for name, place in places.items()})

  def __getitem__(self, name: str) -> Any:
    return import_name(self.data[name])

  def attribute(self, name: str) -> Any:
    """Returns the choice that Python code calls `name`, for `__getattr__` of a module."""
    for choice, place in self.data.items():
      if place.endswith(f":{name}"):
        return self[choice]
    raise AttributeError(f"no choice is called {name!r}")


def table_of(field: str) -> Mapping[str, Any]:
  """Returns the table of the valid names of a field, such as "optimizer"."""
  return import_name(TABLES[field])


def _find_shipped(table: Mapping[str, Any], name: str, field: str) -> Any:
  """Returns the entry of a table whose class or function is `module:Name`; imports no other."""
  for choice, entry in table.data.items() if isinstance(table, Table) else table.items():
    place = f"{getattr(entry, '__module__', '')}:{getattr(entry, '__qualname__', '')}"
    if name in (entry, place):
      return table[choice]
  raise refuse_code(name, field)


def lookup(table: Mapping[str, Any], name: str, field: str) -> Any:
  """Returns `table[name]`, or the object at a dotted name such as "my_package.my_file:MyMixer".

  Args:
    table: The built-in choices by name.
    name: A key of the table, or `module:Name` of the user's own code.
    field: The path of the config field, for the error.

  Raises:
    ConfigError: The name is neither a key of the table nor of the form `module:Name`, or the code
      that it refers to may not be imported here or cannot be imported.
  """
  if isinstance(name, str) and name in table:
    return table[name]
  if not isinstance(name, str) or ":" not in name:
    raise ConfigError(
      f"{field}={name!r} is unknown.{nearest(name, table)} Valid: {listing(table)};"
      " or your own code as 'module:Name'."
    )
  if not is_allowed(name):
    return _find_shipped(table, name, field)
  reach_current_folder()
  try:
    code = import_name(name)
  except (ImportError, AttributeError, ValueError) as error:
    raise ConfigError(f"{field}={name!r} cannot be imported ({error}); correct it.") from error
  if _trusted.get() is None and (imported := _imported.get()) is not None:
    imported.add(name)
  return code


def import_name(name: str) -> Any:
  """Returns the object at a dotted name, such as "vitx.models:MODELS"."""
  module, attribute = name.split(":", 1)
  return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))


def function_of(entry: Any) -> Callable:
  """Returns the callable whose arguments are the config fields of a table's entry.

  This is the entry's method `from_config`, if there is one, or else the entry.
  """
  return getattr(entry, "from_config", entry)


@dataclasses.dataclass(frozen=True)
class Names:
  """An iterable of a few names and then the others in a table; iterating imports the table.

  Attributes:
    first: The names that come first.
    field: The path of the field whose table of names it is, such as "model".
  """

  first: Collection[str]
  field: str

  def __iter__(self) -> Iterator[str]:
    yield from self.first
    yield from (name for name in table_of(self.field) if name not in self.first)


def fields_of(spec: str | Mapping[str, Any]) -> dict[str, Any]:
  """Converts a named choice (a bare name or a dict) to a new dict with `name` and its fields."""
  return dict(spec) if hasattr(spec, "keys") else {"name": spec}  # type: ignore[arg-type]


def options(function: Callable) -> dict[str, inspect.Parameter]:
  """Returns the keyword parameters of a class or function without Flax's own fields."""
  parameters = inspect.signature(function).parameters.values()
  kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
  return {p.name: p for p in parameters if p.kind in kinds and p.name not in ("parent", "self")}


def check_options(function: Callable, fields: Mapping[str, Any], field: str, hidden=()) -> None:
  """Checks that a class or function takes these fields, none of which is in `hidden`."""
  valid = [name for name in options(function) if name not in hidden]
  for key in fields:
    if key not in valid:
      owner: Any = function.__self__ if inspect.ismethod(function) else function
      owner = getattr(owner, "__name__", str(owner))
      path = f"{field}.{key}"
      raise ConfigError(
        f"{path}={fields[key]!r}: {owner} has no field {key!r}.{suggest(path, valid)}"
        f" Valid: {listing(valid) or 'none'}."
      )


def build(
  table: Mapping[str, Any], spec: str | Mapping[str, Any], field: str, hidden=()
) -> partial:
  """Turns `dict(name=..., **fields)`, or a bare name, into a callable with those fields bound.

  Args:
    table: The built-in choices by name.
    spec: The entry in the config.
    field: The path of the entry in the config, for errors.
    hidden: The arguments that the caller supplies itself, so that a config may not set them.

  Raises:
    ConfigError: A name or field is unknown (the message lists the valid ones and the nearest), or a
      value does not have the declared type of its field.
  """
  fields = fields_of(spec)
  function = lookup(table, fields.pop("name", None), f"{field}.name")
  check_options(function, fields, field, hidden)
  check_fields(function, fields, field)
  return partial(function, **fields)
