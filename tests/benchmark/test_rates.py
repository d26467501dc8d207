"""The search for the best batch size, with a clock that only the programs advance."""

from tests.benchmark.test_timing import Clock
from vitx.benchmark.timing import BestRate, TooLargeError, find_rates


def make_program(clock, name, seconds, largest=10**9):
  """Returns a function that makes programs of `seconds(batch)` and refuses large batches."""

  def make(batch):
    if batch > largest:
      raise TooLargeError(f"needs {batch} GB")
    return clock.program((name, batch), seconds(batch))

  return make


def find(clock, makers, say=lambda text: None):
  return find_rates(makers, say=say, clock=clock, repeats=2, seconds=1e9)


def test_the_batch_doubles_until_the_rate_stays():
  clock = Clock()
  rates = find(clock, {"a": make_program(clock, "a", lambda batch: 1.0 + 0.1 * batch)})
  # Examples per second: 8.65 at 64; 9.28 at 128, 7 % more; 9.62 at 256, 4 % more, the last size.
  assert rates["a"].batch == 256 and abs(rates["a"].per_second - 256 / 26.6) < 1e-9
  assert max(batch for _, batch in clock.ran) == 256


def test_rows_take_turns_and_stop_by_themselves():
  clock, messages = Clock(), []
  makers = {
    "quick": make_program(clock, "quick", lambda batch: 1.0, largest=8),
    "flat": make_program(clock, "flat", lambda batch: batch**1.5),
    "huge": make_program(clock, "huge", lambda batch: 1.0, largest=0),
  }
  rates = find(clock, makers, messages.append)
  assert rates == {"quick": BestRate(8, 8.0), "flat": BestRate(1, 1.0)}
  first = [name for name, batch in clock.ran if batch == 1]
  assert first.index("flat") < len(first) - 1 - first[::-1].index("quick")
  assert any("quick: a batch of 16 needs 16 GB" in line for line in messages)
