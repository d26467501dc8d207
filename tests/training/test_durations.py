"""Durations in steps and epochs, and events at such intervals."""

from decimal import Decimal
from fractions import Fraction

import pytest

from tests.slow import all_but
from vitx.config.errors import ConfigError
from vitx.training.durations import is_due, settle, to_period, to_steps


@pytest.mark.parametrize(
  "duration, steps_per_epoch, expected",
  [
    ("300 steps", 10, 300),
    ("300", 10, 300),
    (300, 10, 300),
    (0, 10, 0),
    (" 7  steps ", 10, 7),
    ("1 epoch", 10, 10),
    ("1 epochs", 12.6328125, 13),
    ("2.5 epochs", 12.6328125, 32),
    (".5 epochs", 10, 5),
    # 3 * (50 / 3) is 50 although 50 / 3 is no float.
    ("3 epochs", 50 / 3, 50),
    # 1.1 * 100 > 110 in floats.
    ("1.1 epochs", Fraction(100), 110),
  ],
)
def test_durations_become_whole_steps(duration, steps_per_epoch, expected):
  result = to_steps(duration, steps_per_epoch, "duration")
  assert result == expected and type(result) is int


@pytest.mark.parametrize("duration", ["", -3, "2.5 steps", 2.5, "3 epoch s", None, True])
def test_texts_that_are_no_durations_are_refused(duration):
  with pytest.raises(ConfigError, match=r"^checkpoint\.every="):
    to_steps(duration, 10, "checkpoint.every")


@pytest.mark.parametrize(
  "every", ["1 epochs", "0.1 epochs", "2.5 epochs", "0.01 epochs", "7 steps", "1 steps"]
)
@pytest.mark.parametrize(
  "steps_per_epoch", all_but(12.5, 0.4, of=[12.6328125, 12.5, 50000 / 96, 3, 1.0, 0.4])
)
def test_due_falls_on_each_event_once(every, steps_per_epoch):
  period = to_period(every, steps_per_epoch, "every")
  last = 700 if steps_per_epoch > 1 else 100  # many events fall on one step
  fired = [step for step in range(last) if is_due(step, period)]
  amount, unit = every.split()
  # The end of k times the duration, for every k that ends within the range.
  ends = (to_steps(f"{Decimal(amount) * k} epochs", steps_per_epoch) for k in range(1, 200_000))
  if unit == "steps":
    ends = (int(amount) * k for k in range(1, last + 1))
  expected = set()
  for end in ends:
    if end >= last:
      break
    expected.add(end)
  assert fired == sorted(expected - {0})


def test_epochs_never_drift():
  steps_per_epoch = 1617 / 128
  period = to_period("1 epochs", steps_per_epoch, "every")
  fired = [step for step in range(13_000) if is_due(step, period)]
  assert fired == [round(k * steps_per_epoch) for k in range(1, len(fired) + 1)]
  assert len(fired) == 1029


def test_nothing_is_due_at_the_start_and_a_period_of_zero_is_refused():
  assert not is_due(0, Fraction(1))
  with pytest.raises(ConfigError, match=r"^log_every='0 steps'"):
    to_period("0 steps", 10, "log_every")


@pytest.mark.parametrize(
  ("duration", "total", "expected"),
  [
    ("30 epochs", 100, "30 epochs"),
    ("", 100, ""),
    (None, 100, None),
    (0.5, 100, 0.5),
    ("30 epochs, at least 200 steps", None, "300 steps"),
    ("30 epochs, at most 2.5 epochs", None, "25 steps"),
    ("30 epochs,at least 400,at most 350 steps", None, "350 steps"),
    ("5%", 645, "32 steps"),
    ("5%", 6, "1 steps"),
    ("0%", 645, "0 steps"),
    ("4%, at most 50 steps", 2000, "50 steps"),
    ("5%, at least 1 epochs", 100, "10 steps"),
    (("25%", "60%", "900 steps"), 1000, ("250 steps", "600 steps", "900 steps")),
  ],
)
def test_bounds_and_shares_become_steps(duration, total, expected):
  assert settle(duration, 10, total) == expected


@pytest.mark.parametrize(
  ("duration", "total"),
  [
    ("5%", None),
    ("30 epochs, at least", 100),
    ("5 % steps", 100),
    ("-5%", 100),
  ],
)
def test_bounds_and_shares_without_a_duration_are_refused(duration, total):
  with pytest.raises(ConfigError, match=r"^log_every="):
    settle(duration, 10, total, "log_every")
