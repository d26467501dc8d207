"""The best batch, found with a clock that the programs turn."""

from vitx.benchmark.timing import BestRate, TooLargeError, find_rates


class Clock:
  """Programs that take known seconds, and the order in which they ran."""

  def __init__(self):
    self.now, self.ran = 0.0, []

  def maker(self, name, seconds, largest=10**9):
    def make(batch):
      if batch > largest:
        raise TooLargeError(f"needs {batch} GB")

      def run():
        self.now += seconds(batch)
        self.ran.append((name, batch))

      return run

    return make

  def find(self, makers, say=lambda text: None):
    clock = {"clock": lambda: self.now, "repeats": 2, "seconds": 1e9}
    return find_rates(makers, say=say, **clock)


def test_doubled_until_it_no_longer_pays():
  clock = Clock()
  found = clock.find({"a": clock.maker("a", lambda batch: 1.0 + 0.1 * batch)})
  # 64 examples: 8.65 a second; 128: 9.28, 7 % more; 256: 9.62, 4 % more, the best and the last.
  assert found["a"].batch == 256 and abs(found["a"].per_second - 256 / 26.6) < 1e-9
  assert max(batch for _, batch in clock.ran) == 256


def test_a_slower_larger_batch_is_not_the_best():
  clock = Clock()
  found = clock.find({"a": clock.maker("a", lambda batch: 1.0 if batch < 8 else batch)})
  assert found == {"a": BestRate(4, 4.0)}


def test_rows_take_turns_and_stop_by_themselves():
  clock, told = Clock(), []
  makers = {
    "quick": clock.maker("quick", lambda batch: 1.0, largest=8),
    "flat": clock.maker("flat", lambda batch: batch**1.5),
    "huge": clock.maker("huge", lambda batch: 1.0, largest=0),
  }
  found = clock.find(makers, told.append)
  assert found == {"quick": BestRate(8, 8.0), "flat": BestRate(1, 1.0)}
  first = [name for name, batch in clock.ran if batch == 1]
  assert first.index("flat") < len(first) - 1 - first[::-1].index("quick")
  assert any("quick: a batch of 16 needs 16 GB" in line for line in told)
