"""Programs are timed in turns, with a clock that only the programs advance."""

import jax
import jax.numpy as jnp
import pytest

from vitx.benchmark import timing


class Clock:
  """A clock for programs that take given seconds; it lists the programs that ran."""

  def __init__(self):
    self.now, self.ran = 0.0, []

  def __call__(self):
    return self.now

  def program(self, name, *seconds):
    durations = list(seconds)

    def run():
      self.now += durations.pop(0) if len(durations) > 1 else durations[0]
      self.ran.append(name)

    return run


def timed(clock, repeats, seconds=100.0, **programs):
  return timing.interleave(programs, repeats=repeats, seconds=seconds, clock=clock)


def test_programs_run_in_turns_after_a_run_that_does_not_count():
  clock = Clock()
  times = timed(clock, 3, a=clock.program("a", 9.0, 1.0), b=clock.program("b", 9.0, 2.0))
  assert clock.ran == ["a", "b", *["a", "b"] * 3]
  assert times == {"a": timing.Times(1.0, 3), "b": timing.Times(2.0, 3)}


def test_a_short_program_runs_untimed_after_another():
  clock = Clock()
  after_another = clock.program("a", 0.1, 0.3, 0.1, 0.3, 0.1)
  times = timed(clock, 2, a=after_another, b=clock.program("b", 1.0))
  assert clock.ran == ["a", "b", *["a", "a", "b"] * 2]
  assert times["a"].seconds == pytest.approx(0.1)


def test_a_short_program_runs_often_enough_to_be_timed():
  clock = Clock()
  times = timed(clock, 2, a=clock.program("a", 0.001))
  assert times["a"].seconds == pytest.approx(0.001)
  assert len(clock.ran) >= 2 * timing.MIN_SAMPLE / 0.001


def test_a_budget_cuts_rounds_but_never_the_first():
  clock = Clock()
  times = timed(clock, 5, 10.0, slow=clock.program("slow", 20.0), mid=clock.program("mid", 4.0))
  assert times["slow"].samples == 1
  assert times["mid"].samples == 2  # A third sample would end after 12 s.
  assert timed(clock, 5, -1.0, a=clock.program("a", 1.0))["a"].samples == 1


def test_a_compiled_step_knows_its_cost():
  program = timing.compile_step(lambda a, b: a @ b, jnp.ones((8, 16)), jnp.ones((16, 4)))
  assert program.flops == 3 * 2 * 8 * 16 * 4  # a forward product, and one for each gradient
  assert program.temporary_bytes >= 0
  assert program.run() is None


def test_a_program_beyond_the_memory_is_refused_before_it_runs(monkeypatch):
  monkeypatch.setattr(timing, "find_free_bytes", lambda: 10**6)
  timing.check_memory(8 * 10**5)
  with pytest.raises(timing.TooLargeError, match=r"needs 0\.0 GB"):
    timing.check_memory(10**6)
  big = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
  with pytest.raises(timing.TooLargeError):
    timing.compile_step(lambda x: jnp.sin(x) @ x, jnp.ones(big.shape))


def take(name):
  held = bytearray(int(name))
  return lambda: held.__setitem__(slice(None, None, 4096), b"x" * len(held[::4096]))


@pytest.mark.slow(reason="a process of its own")
def test_peak_memory_leaves_imports_out():
  assert 90e6 < timing.peak_bytes(int, take, "100000000") < 140e6
