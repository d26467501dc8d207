"""Names to code: the one way to turn a config's named choice into a callable.

Every named choice of a config (`dict(name="softmax", ...)`) is resolved by `build`: an unknown name
or option raises `ConfigError`, lists the valid ones and says which is nearest. Nothing is filtered.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from vitx.checks import check_fields
from vitx.errors import ConfigError, listing, nearest


def lookup(table: Mapping[str, Any], name: str, field: str) -> Any:
  """Returns `table[name]`, or the object at a dotted name such as "my_package.my_file:MyMixer".

  Args:
    table: the built-in choices by name.
    name: a key of the table, or `module:attribute` of the user's own.
    field: the config field, for the error.

  Raises:
    ConfigError: the name is neither; lists the valid names and the nearest.
  """
  if name in table:
    return table[name]
  if isinstance(name, str) and ":" in name:
    return _import(name, field)
  raise ConfigError(
    f"{field}={name!r} is unknown.{nearest(name, table)} Valid: {listing(table)};"
    " or your own as 'module:Name'."
  )


def _import(name: str, field: str) -> Any:
  module, attribute = name.split(":", 1)
  try:
    return getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError) as error:
    raise ConfigError(f"{field}={name!r} cannot be imported: {error}") from error


def options(function: Callable) -> dict[str, inspect.Parameter]:
  """The settings that a class or function takes by keyword, Flax's own fields left out."""
  parameters = inspect.signature(function).parameters.values()
  kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
  return {p.name: p for p in parameters if p.kind in kinds and p.name not in ("parent", "self")}


def check_options(function: Callable, given: Mapping[str, Any], field: str, hidden=()) -> None:
  """Raises ConfigError if `given` has a key that `function` does not take or that is `hidden`."""
  valid = [name for name in options(function) if name not in hidden]
  for key in given:
    if key not in valid:
      owner = getattr(function, "__name__", str(function))
      raise ConfigError(
        f"{field}.{key}={given[key]!r}: {owner} has no field {key!r}.{nearest(key, valid)}"
        f" Valid: {listing(valid) or 'none'}."
      )


def build(
  table: Mapping[str, Any], spec: str | Mapping[str, Any], field: str, hidden=()
) -> partial:
  """Turns `dict(name=..., **fields)`, or a bare name, into a callable with those fields bound.

  Args:
    table: the built-in choices by name.
    spec: the config's entry.
    field: where the entry stands in the config, for errors.
    hidden: arguments that the caller supplies itself, which a config may not set.

  Raises:
    ConfigError: unknown name or field (lists the valid ones and the nearest), or a value that is
      not of the type which the field declares.
  """
  if not isinstance(spec, str) and not hasattr(spec, "keys"):
    raise ConfigError(f"{field}={spec!r} must be a name. Valid: {listing(table)}.")
  fields = {"name": spec} if isinstance(spec, str) else dict(spec)
  if "name" not in fields:
    raise ConfigError(f"{field} needs a name. Valid: {listing(table)}.")
  function = lookup(table, fields.pop("name"), f"{field}.name")
  check_options(function, fields, field, hidden)
  check_fields(function, fields, field)
  return partial(function, **fields)
