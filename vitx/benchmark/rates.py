"""Examples a second at the best batch: batches are doubled for as long as that pays."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from vitx.benchmark.timing import TooLargeError, interleave

GROWTH = 1.05  # of the best rate so far, that a batch twice as large must reach to be doubled again


@dataclasses.dataclass(frozen=True)
class Rate:
  """The best rate of a program.

  Attributes:
    batch: at which it was reached.
    per_second: examples.
  """

  batch: int
  per_second: float


def find_rates(
  makers: Mapping[str, Callable[[int], Callable[[], None]]],
  *,
  say: Callable[[str], None],
  **effort: Any,
) -> dict[str, Rate]:
  """Returns the best rate of each program; batches are 1, 2, 4, ... of all programs in turns.

  A program takes part until a batch does not fit the memory that is free, or is no `GROWTH` better
  than the best before it. One whose first batch does not fit has no rate.

  Args:
    makers: each returns what runs a batch of so many examples to its end, or raises TooLargeError.
    say: is told of progress.
    **effort: of `interleave`.
  """
  best: dict[str, Rate] = {}
  going, batch = dict(makers), 1
  while going:
    say(f"batch {batch}: {', '.join(going)}")
    runs = {}
    for name, make in going.items():
      try:
        runs[name] = make(batch)
      except TooLargeError as error:
        say(f"{name}: a batch of {batch} {error}")
    found = {
      name: Rate(batch, batch / times.seconds) for name, times in interleave(runs, **effort).items()
    }
    going = {name: makers[name] for name, rate in found.items() if _pays(rate, best.get(name))}
    for name, rate in found.items():
      best[name] = max(rate, best.get(name, rate), key=lambda rate: rate.per_second)
    batch *= 2
  return best


def _pays(rate: Rate, best: Rate | None) -> bool:
  return best is None or rate.per_second >= GROWTH * best.per_second
