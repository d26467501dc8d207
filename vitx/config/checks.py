"""The types that config fields are declared with, and the checks of values against them.

A field declares its type and range, such as `num_heads: PositiveInt = 3` or `dropout: Rate = 0.0`.
`check_fields` checks values against the declarations; `registry.build` calls it for the fields of
every named choice. Write your own range as `Annotated[float, Range("(0, 2]")]`.
"""

import dataclasses
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from vitx.config.errors import ConfigError, listing, nearest


@dataclasses.dataclass(frozen=True)
class Range:
  """An interval of numbers in mathematical notation, such as "[0, 1)", which error messages show.

  If ", odd" follows the bounds, as in "[0, 9], odd or 0", the interval has only odd numbers, and 0
  if it is within the bounds.
  """

  interval: str

  def __contains__(self, value: float) -> bool:
    bounds, odd, _ = self.interval.partition(", odd")
    low, high = (float(bound) for bound in bounds[1:-1].split(","))
    above = value >= low if bounds[0] == "[" else value > low
    below = value <= high if bounds[-1] == "]" else value < high
    return above and below and (not odd or value % 2 == 1 or value == 0)


class Registered:
  """Marks a field whose value is a name in one of the registry's tables, or `module:Name`."""


# The upper bounds of sizes refuse arrays that no machine could hold.
PositiveInt = Annotated[int, Range("[1, 1000000]")]
NonNegativeInt = Annotated[int, Range("[0, 1000000]")]
SquaredSize = Annotated[int, Range("[1, 4096]")]  # memory grows with the square of such a size
Depth = Annotated[int, Range("[1, 1000]")]
Seed = Annotated[int, Range("[0, 4294967295]")]
Positive = Annotated[float, Range("(0, inf)")]
NonNegative = Annotated[float, Range("[0, inf)")]
Rate = Annotated[float, Range("[0, 1)")]
Share = Annotated[float, Range("(0, 1]")]
Probability = Annotated[float, Range("[0, 1]")]
Finite = Annotated[float, Range("(-inf, inf)")]
SEQUENCES = (tuple, list, Sequence)


def check_number(value: Any, field: str, interval: str) -> None:
  """Checks that `value` is a finite number in `interval`, such as "[0, 1)"."""
  number = isinstance(value, int | float) and not isinstance(value, bool)
  if not number or not abs(value) <= sys.float_info.max:  # This also refuses nan.
    raise ConfigError(f"{field}={value!r} is not a number; it must lie in {interval}")
  if value not in Range(interval):
    raise ConfigError(f"{field}={value!r} is out of range; it must lie in {interval}")


def check_integer(value: Any, field: str, interval: str) -> None:
  """Checks that `value` is an integer in `interval`."""
  if isinstance(value, bool) or not isinstance(value, int):
    raise ConfigError(f"{field}={value!r} must be an integer in {interval}")
  if value not in Range(interval):
    raise ConfigError(f"{field}={value!r} is out of range; it must be an integer in {interval}")


def check_choice(value: Any, field: str, choices: Sequence[Any]) -> Any:
  """Returns `value` if it is one of `choices`; otherwise the error suggests the nearest choice."""
  if not any(value == choice and type(value) is type(choice) for choice in choices):
    raise ConfigError(
      f"{field}={value!r} is unknown.{nearest(value, choices)} Valid: {listing(choices)}."
    )
  return value


def check_fields(function: Callable, fields: Mapping[str, Any], field: str) -> None:
  """Checks the values of a config against the types that a class or function declares.

  Args:
    function: The class or function with annotated fields or arguments. Only annotations of numbers,
      strings, booleans, literals and sequences of these are checked.
    fields: The config's values by name.
    field: The path of the section with the values, for the error; "" for the top of the config.
  """
  parameters = inspect.signature(function).parameters
  for name, value in fields.items():
    if name in parameters:
      check_value(value, f"{field}.{name}" if field else name, parameters[name].annotation)


def check_value(value: Any, field: str, kind: Any) -> None:
  """Checks that a value has a declared type and is in its range.

  Raises:
    ConfigError: The value has another type or is out of range.
  """
  options = _options(kind)
  if options is None:
    return
  problems = []
  # The most useful error is that of the alternative type that the value resembles.
  for option in sorted(options, key=lambda option: not _resembles(value, option)):
    try:
      _check_one(value, field, option)
      return
    except ConfigError as error:
      problems.append(error)
  raise problems[0]


def base_types(kind: Any) -> set[type]:
  """Returns the plain types in an annotation: {int, tuple} for `int | tuple[int, int]`."""
  origin, arguments = get_origin(kind), get_args(kind)
  if origin in (Union, types.UnionType):
    return set().union(*map(base_types, arguments))
  if origin is Annotated:
    return base_types(arguments[0])
  return set(map(type, arguments)) if origin is Literal else {origin or kind}


def _options(kind: Any) -> list[Any] | None:
  """Returns the alternative types in an annotation; `None` if one of them cannot be checked."""
  options = list(get_args(kind)) if get_origin(kind) in (Union, types.UnionType) else [kind]
  return options if all(_is_known(option) for option in options) else None


def _is_known(kind: Any) -> bool:
  origin = get_origin(kind)
  if origin in SEQUENCES:
    return all(argument is ... or _options(argument) for argument in get_args(kind))
  return kind in (int, float, bool, str, None, type(None)) or origin in (Annotated, Literal)


def _resembles(value: Any, kind: Any) -> bool:
  if kind in (None, type(None)):
    return value is None
  return isinstance(value, tuple | list) == (get_origin(kind) in SEQUENCES)


def _check_one(value: Any, field: str, kind: Any) -> None:
  notes = getattr(kind, "__metadata__", ())
  kind = get_args(kind)[0] if notes else kind
  origin = get_origin(kind)
  if kind in (None, type(None)):
    if value is not None:
      raise ConfigError(f"{field}={value!r} must be None.")
  elif origin is Literal:
    check_choice(value, field, get_args(kind))
  elif origin in SEQUENCES:
    _check_sequence(value, field, kind)
  elif kind in (bool, str):
    if not isinstance(value, kind):
      expected = "True or False" if kind is bool else "a string"
      raise ConfigError(f"{field}={value!r} must be {expected}")
  else:
    intervals = [note.interval for note in notes if isinstance(note, Range)]
    check = check_integer if kind is int else check_number
    check(value, field, intervals[0] if intervals else "(-inf, inf)")


def _check_sequence(value: Any, field: str, kind: Any) -> None:
  if isinstance(value, str) or not isinstance(value, Sequence):
    raise ConfigError(f"{field}={value!r} must be a tuple, such as ({value!r},).")
  kinds = get_args(kind)
  if get_origin(kind) is not tuple or ... in kinds:
    kinds = (kinds[0],) * len(value)
  if len(value) != len(kinds):
    raise ConfigError(f"{field}={value!r} must have {len(kinds)} entries.")
  for number, (entry, entry_kind) in enumerate(zip(value, kinds, strict=True)):
    check_value(entry, f"{field}[{number}]", entry_kind)
