"""Names to code: the one way to turn a config's named choice into a callable.

Every named choice of a config (`dict(name="softmax", ...)`) is resolved by `build`: an unknown name
or option raises `ConfigError`, lists the valid ones and says which is nearest. Nothing is filtered.

A name `module:Name` imports code, so a config that somebody else wrote is read under
`trusting(False)`, where only the names of the tables and of `OWN` packages are taken.
"""

import contextlib
import contextvars
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from vitx.checks import check_fields
from vitx.errors import ConfigError, listing, nearest

OWN = ("vitx", "optax")  # whose code is here anyway
_trusted = contextvars.ContextVar("trusted", default=True)


@contextlib.contextmanager
def trusting(allowed: bool) -> Iterator[None]:
  """Says whether `lookup` may import what a name `module:Name` names, while the context lasts."""
  token = _trusted.set(allowed)
  try:
    yield
  finally:
    _trusted.reset(token)


def _check_own(name: str, field: str) -> None:
  if name.split(":")[0].split(".")[0] not in OWN:
    raise ConfigError(
      f"{field}={name!r} names Python code that would be run; if you trust whoever made it, say"
      " trust_code=True (--trust_code)"
    )


def lookup(table: Mapping[str, Any], name: str, field: str, kind: Any = None) -> Any:
  """Returns `table[name]`, or the object at a dotted name such as "my_package.my_file:MyMixer".

  Args:
    table: the built-in choices by name.
    name: a key of the table, or `module:attribute` of the user's own.
    field: the config field, for the error.
    kind: a class of which the user's own must be a subclass or instance. `None` means the kind of
      those in the table, as `kind_of` has it.

  Raises:
    ConfigError: the name is neither (lists the valid names and the nearest), may not be imported
      here, or is of another kind.
  """
  if isinstance(name, str) and name in table:
    return table[name]
  if not isinstance(name, str) or ":" not in name:
    raise ConfigError(
      f"{field}={name!r} is unknown.{nearest(name, table)} Valid: {listing(table)};"
      " or your own as 'module:Name'."
    )
  if not _trusted.get():
    _check_own(name, field)
  found = _import(name, field)
  _check_kind(found, kind_of(table) if kind is None else (kind,), f"{field}={name!r}")
  return found


def kind_of(table: Mapping[str, Any]) -> tuple[type, ...]:
  """Returns the classes that all entries of a table are subclasses, or else instances, of.

  What shares one of them may stand beside those entries. Empty: whatever can be called, as where a
  table has no entries.
  """
  entries = list(table.values())
  classes = all(isinstance(entry, type) for entry in entries)
  if not entries or (not classes and any(callable(entry) for entry in entries)):
    return ()
  bases = [set((entry if classes else type(entry)).__mro__) - {object} for entry in entries]
  # Of a single entry nobody can say which of its bases is meant.
  common = set.intersection(*bases) if len(bases) > 1 else set()
  return tuple(sorted(common, key=lambda base: base.__name__)) or ((type,) if classes else ())


def _check_kind(found: Any, kinds: tuple[type, ...], what: str) -> None:
  own = found.func if isinstance(found, partial) else found
  if not kinds:
    fits, wanted = callable(own), "a function or class"
  elif isinstance(own, type):
    fits, wanted = issubclass(own, kinds) or type in kinds, f"a subclass of {kinds[-1].__name__}"
  else:
    fits, wanted = isinstance(own, kinds), f"a {kinds[-1].__name__}"
  if not fits:
    raise ConfigError(f"{what} is {type(own).__name__} {own!r:.60}, not {wanted}")


def _import(name: str, field: str) -> Any:
  module, attribute = name.split(":", 1)
  try:
    found = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
  except (ImportError, AttributeError, ValueError) as error:
    raise ConfigError(f"{field}={name!r} cannot be imported: {error}") from error
  home = str(getattr(found, "__module__", module)).split(".")[0]
  if not _trusted.get() and home not in OWN:
    raise ConfigError(f"{field}={name!r} is code of {home}; say trust_code=True (--trust_code)")
  return found


def fields_of(spec: str | Mapping[str, Any]) -> dict[str, Any]:
  """Returns a choice, `dict(name=..., **fields)` or the bare name, as a dict of its own."""
  return {"name": spec} if isinstance(spec, str) else dict(spec)


def options(function: Callable) -> dict[str, inspect.Parameter]:
  """Returns what a class or function takes by keyword, Flax's own fields left out."""
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
  table: Mapping[str, Any],
  spec: str | Mapping[str, Any],
  field: str,
  hidden=(),
  kind: Any = None,
) -> partial:
  """Turns `dict(name=..., **fields)`, or a bare name, into a callable with those fields bound.

  Args:
    table: the built-in choices by name.
    spec: the config's entry.
    field: where the entry stands in the config, for errors.
    hidden: arguments that the caller supplies itself, which a config may not set.
    kind: of the user's own, see `lookup`.

  Raises:
    ConfigError: unknown name or field (lists the valid ones and the nearest), or a value that is
      not of the type which the field declares.
  """
  if not isinstance(spec, str) and not hasattr(spec, "keys"):
    raise ConfigError(f"{field}={spec!r} must be a name. Valid: {listing(table)}.")
  fields = fields_of(spec)
  if "name" not in fields:
    raise ConfigError(f"{field} needs a name. Valid: {listing(table)}.")
  function = lookup(table, fields.pop("name"), f"{field}.name", kind)
  check_options(function, fields, field, hidden)
  check_fields(function, fields, field)
  return partial(function, **fields)
