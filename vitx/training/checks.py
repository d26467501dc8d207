"""The range of a number that a config gives, checked in one place."""

import math
from typing import Any

from vitx.errors import ConfigError


def check_number(value: Any, field: str, interval: str) -> float:
  """Returns `value` if it is a number in `interval`.

  Args:
    value: what the config says.
    field: where it says so, for the error.
    interval: as written in mathematics, such as "[0, 1)" or "(0, inf)"; it stands in the error.

  Raises:
    ConfigError: not a number, not finite, or outside the interval.
  """
  low, high = (float(bound) for bound in interval[1:-1].split(","))
  if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
    raise ConfigError(f"{field}={value!r} is not a number; it must lie in {interval}")
  above = value >= low if interval[0] == "[" else value > low
  below = value <= high if interval[-1] == "]" else value < high
  if not (above and below):
    raise ConfigError(f"{field}={value!r} is out of range; it must lie in {interval}")
  return value


def check_count(value: Any, field: str) -> int:
  """Returns `value` if it is an integer of at least 0; raises ConfigError otherwise."""
  if isinstance(value, bool) or not isinstance(value, int) or value < 0:
    raise ConfigError(f"{field}={value!r} must be an integer of at least 0")
  return value
