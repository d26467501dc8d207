"""Durations in steps or epochs, and events that recur after a duration.

"300 steps", "300" and 300 are steps; "2.5 epochs" depends on the steps per epoch, which need not be
an integer: an epoch of 1,617 examples in batches of 128 has 12.6328125 steps. Durations are exact
fractions internally, so that the third event of "every 0.1 epochs" falls exactly on "0.3 epochs".

In a config, a duration may also have bounds, as in "30 epochs, at least 200 steps". Every duration
except the length of the run may be a share of that length, as in "5%". `settle` turns both forms
into plain numbers of steps.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from vitx.config.errors import ConfigError

_AMOUNT = r"(\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile(rf"{_AMOUNT}(?:\s*(steps?|epochs?))?")
_SHARE = re.compile(rf"{_AMOUNT}\s*%")
_BOUND = re.compile(r"\s*,\s*at (least|most)\s+")
_BOUNDS: dict[str, Callable[..., Fraction]] = {"least": max, "most": min}
Number = int | float | Fraction


def to_steps(duration: str | int, steps_per_epoch: Number, field: str = "duration") -> int:
  """Converts a duration to whole steps; epochs are rounded to the nearest step, half to even.

  Args:
    duration: A duration such as "300 steps", "2.5 epochs", "300" or 300.
    steps_per_epoch: The number of examples divided by the batch size.
    field: The name of the config field, for the error message.
  """
  return round(_period(duration, steps_per_epoch, field))


def settle(
  value: Any, steps_per_epoch: Number, total_steps: int | None = None, field: str = "duration"
) -> Any:
  """Converts a duration that has bounds, or that is a share of the run, to plain steps.

  The result is a text such as "300 steps". Bounds are applied from left to right. The result has at
  least one step, unless the duration is zero. A value without bounds and shares is returned
  unchanged, whatever its type.

  Args:
    value: A duration such as "30 epochs, at least 200 steps" or "5%", a sequence of durations, or
      any other value.
    steps_per_epoch: The number of examples divided by the batch size.
    total_steps: The length of the run in steps, of which a share is taken; None if `value` is this
      length itself.
    field: The name of the config field, for the error message.
  """
  if isinstance(value, (tuple, list)):
    return type(value)(settle(entry, steps_per_epoch, total_steps, field) for entry in value)
  if not isinstance(value, str) or not ("%" in value or "," in value):
    return value

  def read(text: str) -> Fraction:
    share = _SHARE.fullmatch(text.strip())
    if share is None or total_steps is None:
      return _period(text, steps_per_epoch, field)
    return Fraction(share[1]) * total_steps / 100

  amount, *bounds = _BOUND.split(value)
  steps = read(amount)
  for word, bound in zip(bounds[::2], bounds[1::2], strict=True):
    steps = _BOUNDS[word](steps, read(bound))
  return f"{max(1, round(steps)) if steps else 0} steps"


def to_period(every: str | int, steps_per_epoch: Number, field: str) -> Fraction:
  """Returns the exact number of steps between two events, which is above zero.

  Args:
    every: The duration between two events.
    steps_per_epoch: The number of examples divided by the batch size.
    field: The name of the config field, for the error message.
  """
  period = _period(every, steps_per_epoch, field)
  if period == 0:
    raise ConfigError(f'{field}={every!r} must be longer than zero, such as "1 epochs".')
  return period


def is_due(step: int, period: Fraction) -> bool:
  """Returns whether an event that recurs every `period` steps is due after `step` steps.

  Event k = 1, 2, ... is due after k * `period` steps, rounded, and none after 0 steps. Events that
  are less than a step apart may share a step.
  """
  # If any event rounds to this step, the event nearest to it does.
  event = round(step / period)
  return step > 0 and event > 0 and round(event * period) == step


def _period(duration: str | int, steps_per_epoch: Number, field: str) -> Fraction:
  """Returns a duration as an exact number of steps."""
  is_number = isinstance(duration, int) and not isinstance(duration, bool)
  text = str(duration).strip() if is_number or isinstance(duration, str) else ""
  match = _DURATION.fullmatch(text)
  if match is None:
    raise ConfigError(f'{field}={duration!r} must be a duration: "300 steps" or "2.5 epochs".')
  amount, unit = Fraction(match[1]), match[2] or "steps"
  if unit.startswith("epoch"):
    return amount * Fraction(steps_per_epoch)
  if amount.denominator != 1:
    raise ConfigError(
      f'{field}={duration!r}: the number of steps must be whole. Did you mean "{match[1]} epochs"?'
    )
  return amount
