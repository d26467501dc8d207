"""Settings are groups of fields that are checked once and cannot be changed.

In `vitx.config.fields` the sections of a run's settings are declared as dataclasses of the type
`Settings`.
"""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict

from vitx.config.checks import base_types, check_value

Section = TypeVar("Section", bound="Settings")


class Settings(Mapping[str, Any]):
  """A read-only group of fields, each of which is an attribute and an entry of a mapping.

  A group may also have undeclared fields, such as the fields of a user's own data source.
  """

  def __getitem__(self, name: str) -> Any:
    """Returns the value of a field."""
    return vars(self)[name]

  def __iter__(self) -> Iterator[str]:
    """Yields the names of the fields in the order in which a `ConfigDict` has them."""
    return iter(sorted(vars(self)))

  def __len__(self) -> int:
    """Returns the number of fields."""
    return len(vars(self))


class Group(Settings):
  """A group of fields that its class does not declare, such as the fields of a named choice."""

  def __init__(self, fields: Mapping[str, Any]):
    """Copies the fields."""
    vars(self).update({name: _freeze(value) for name, value in fields.items()})

  def __getattr__(self, name: str) -> Any:
    """Raises AttributeError, since the group has no field of this name."""
    raise AttributeError(f"these settings have no field {name!r}")

  def __setattr__(self, name: str, value: Any) -> None:
    """Raises AttributeError, since settings are not changed."""
    raise AttributeError(f"{name}={value!r}: settings cannot be changed")

  def __repr__(self) -> str:
    """Returns the fields as the text of a dict."""
    return repr(dict(self))


def read_fields(cls: type[Section], fields: Mapping[str, Any], section: str = "data") -> Section:
  """Reads a section of a config into the dataclass that declares the section's fields.

  Args:
    cls: A dataclass whose annotations are the types of the fields.
    fields: The section. Missing fields have their defaults, and other fields are kept unchecked.
      Settings of this class have been checked and are returned.
    section: The name of the section, for errors.
  """
  if isinstance(fields, cls):
    return fields
  kinds = {field.name: field.type for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
  prefix = f"{section}." if section else ""
  declared = [name for name in kinds if name in fields]
  settings = cls(
    **{name: _read_value(kinds[name], fields[name], prefix + name) for name in declared}
  )
  vars(settings).update({name: _freeze(fields[name]) for name in fields if name not in kinds})
  return settings


def _read_value(kind: Any, value: Any, path: str) -> Any:
  """Checks the value of a field against its declared type, and returns it as settings have it."""
  if isinstance(kind, type) and issubclass(kind, Settings) and kind is not Group:
    return read_fields(kind, value, path)
  if base_types(kind) == {Group}:
    return Group(value if hasattr(value, "keys") else {"name": value} if value else {})
  check_value(value, path, kind)
  return _freeze(value)


def _freeze(value: Any) -> Any:
  """Returns a value of a config in which groups are `Group`s and sequences are tuples."""
  if isinstance(value, list | tuple):
    return tuple(map(_freeze, value))
  return Group(value) if hasattr(value, "keys") and not isinstance(value, Settings) else value


def change(settings: Section, changes: Mapping[str, Any]) -> Section:
  """Returns a copy of settings with other values of some fields, given by their paths."""
  changed = copy.copy(settings)
  for path, value in changes.items():
    name, _, rest = path.partition(".")
    vars(changed)[name] = change(changed[name], {rest: value}) if rest else _freeze(value)
  return changed


def to_config(settings: Settings) -> ConfigDict:
  """Returns settings as a config that can be changed, for `Task.resolve` and `loaded.config`."""
  fields = {name: to_config(x) if isinstance(x, Settings) else x for name, x in settings.items()}
  return ConfigDict(fields, type_safe=False)
