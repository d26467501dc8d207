"""Finds the class or function that a named choice of a config refers to.

A named choice is a value such as `dict(name="softmax", ...)`. An unknown name or field raises
ConfigError, which lists the valid ones and the nearest; none is dropped silently.

A name `module:Name` imports code. So a config that somebody else wrote is read in a `with` block of
`trusting(False)`, which allows only names in our tables and names of code that the user's own
config has imported already. The user's own config is read without `trusting(False)`, and the code
that it names is imported. Other files of strangers can name code too, such as the feature classes
of a data set; this needs `trusting(True)`.
"""

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

# True: the user trusts foreign code. False: no foreign code runs. None: nobody has said either.
_trusted: contextvars.ContextVar[bool | None] = contextvars.ContextVar("trusted", default=None)
# The names of the user's own code that were imported in the outermost block of `trusting`.
_own: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("own", default=None)


@contextlib.contextmanager
def trusting(allowed: bool | None) -> Iterator[None]:
  """Sets whether a `with` block may import code that a file from somebody else names.

  A name that the user's own config has given in the outermost block, such as a whole command, is
  allowed in every file, since its code has run already.

  Args:
    allowed: True after `--trust_code`; False for a config that somebody else may have written; None
      to change nothing. A block with False inside a block with True has no effect.
  """
  stated, own = _trusted.get(), _own.get()
  token = _trusted.set(stated if stated or allowed is None else allowed)
  names = _own.set(set() if own is None else own)
  try:
    yield
  finally:
    _trusted.reset(token)
    _own.reset(names)


def is_trusted() -> bool | None:
  """Returns the value that `trusting` set: True if the user allows foreign code to run."""
  return _trusted.get()


def is_allowed(name: str) -> bool:
  """Returns whether code of this name may be imported here, if a config names it."""
  return _trusted.get() is not False or _is_own(name)


def _is_own(name: str) -> bool:
  return name in (_own.get() or ())


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
  elif isinstance(tree, str) and ":" in tree and not (_is_own(tree) or is_text(field, tree)):
    raise refuse_code(tree, field)


def _find_shipped(table: Mapping[str, Any], name: str, field: str) -> Any:
  """Returns the entry of a table whose class or function is `module:Name`; imports nothing."""
  for entry in table.values():
    target = entry.func if isinstance(entry, partial) else entry
    if name == f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', '')}":
      return entry
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
  if _trusted.get() is None and (own := _own.get()) is not None:
    own.add(name)
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
    table: The place of the table, such as "vitx.models:MODELS".
  """

  first: Collection[str]
  table: str

  def __iter__(self) -> Iterator[str]:
    yield from self.first
    yield from (name for name in import_name(self.table) if name not in self.first)


def fields_of(spec: str | Mapping[str, Any]) -> dict[str, Any]:
  """Converts a named choice (a bare name or a dict) to a new dict with `name` and its fields."""
  return dict(spec) if hasattr(spec, "keys") else {"name": spec}  # type: ignore[arg-type]


def options(function: Callable) -> dict[str, inspect.Parameter]:
  """Returns the keyword parameters of a class or function without Flax's own fields."""
  parameters = inspect.signature(function).parameters.values()
  kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
  return {p.name: p for p in parameters if p.kind in kinds and p.name not in ("parent", "self")}


def check_options(function: Callable, given: Mapping[str, Any], field: str, hidden=()) -> None:
  """Checks that a class or function takes the given fields, none of which is in `hidden`."""
  valid = [name for name in options(function) if name not in hidden]
  for key in given:
    if key not in valid:
      owner: Any = function.__self__ if inspect.ismethod(function) else function
      owner = getattr(owner, "__name__", str(owner))
      path = f"{field}.{key}"
      raise ConfigError(
        f"{path}={given[key]!r}: {owner} has no field {key!r}.{suggest(path, valid)}"
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
