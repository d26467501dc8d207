"""Several steps in one dispatch give the bits of single steps, and stop before every event."""

import math
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests import runs
from tests.training import small
from vitx.config.loader import load_config
from vitx.runtime import parallel
from vitx.training import compilation, loop, phases


def dispatch(step, devices: int, counts: tuple[int, ...], room: int = 5):
  """Runs dispatches of as many steps as `counts`; returns every step's metrics and the state."""
  function = small.pmapped(step, "train_several", devices)
  state, rates = small.copies(small.initial(step), devices), small.rates(devices)
  done, losses, stops = 0, [], []
  for count in counts:
    parts = [small.batch(number) for number in range(done, done + room)]
    shape = lambda x: x.reshape(devices, -1, *x.shape[1:])  # noqa: E731
    batches = {k: np.stack([shape(part[k]) for part in parts], axis=1) for k in parts[0]}
    wishes = np.arange(devices, dtype=np.int32) * (count == counts[-1])
    counts_on_devices = np.full(devices, count, np.int32)
    state, metrics, measured, stop = function(state, rates, {}, batches, counts_on_devices, wishes)
    losses += np.asarray(metrics["loss"])[0, :count].tolist()
    np.testing.assert_array_equal(np.asarray(metrics["loss"])[0, count:], 0)
    check_measured(step, state, measured)
    stops.append(np.asarray(stop).tolist())
    done += count
  return losses, jax.tree.map(lambda x: x[0], jax.device_get(state)), stops


def check_measured(step, state, measured):
  """Checks the measured norm of all parameters of a state, and the means of some."""
  params = jax.tree.map(lambda x: np.asarray(x)[0].astype(np.float64), state.params)
  norm = math.sqrt(sum(np.sum(x**2) for x in jax.tree.leaves(params)))
  np.testing.assert_allclose(np.asarray(measured["parameter_norm"]), norm, rtol=1e-5)
  assert len(measured) == (1 if not step.logged else 2)
  for name, value in measured.items():
    if name != "parameter_norm":
      what, block = name.split("/")
      expected = params[block.replace("_0", "_")]["token_mixer"][what].mean()
      np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-5)


@pytest.mark.slow  # compiles three programs more
def test_divisions_and_logged_figures_change_no_bit_of_several_steps():
  """The programs of single steps differ, so sums in float32 may have another order."""
  task = small.task(augment={}, token_mixer="shaped", dropout=0.0, depth=1)
  plain, logging = small.make_step(task), small.make_step(task, logged=("token_mixer/alpha",))
  losses, state, stops = dispatch(plain, 2, (3, 2))
  assert stops[-1] == [1, 1]  # the last device asks; all devices get the answer
  others, other, _ = dispatch(logging, 2, (2, 3))
  assert losses == others
  for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
    np.testing.assert_array_equal(x, y)
  expected, _ = small.run(plain, 5, devices=2)
  np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_dispatch_ends_where_something_is_logged_evaluated_or_saved():
  config = runs.tiny("log_every=7", "evaluation.every=0.37 epochs", "checkpoint.every=10")
  experiment = loop.make_experiment(config)
  step, reached, most = 0, set(), 4
  while step < experiment.total_steps:
    after = experiment.next_event(step, most)
    assert step < after <= min(step + most, experiment.total_steps)
    reached.add(after)
    step = after
  for step in range(1, experiment.total_steps + 1):
    if any(experiment.is_due(step, field) for field in experiment.periods):
      assert step in reached
  assert experiment.total_steps in reached


def test_short_steps_are_dispatched_together():
  assert compilation.count_steps(1) == compilation.count_steps(0) == compilation.MOST_STEPS
  assert compilation.count_steps(compilation.FLOPS_PER_DISPATCH // 3) == 3
  assert compilation.count_steps(10 * compilation.FLOPS_PER_DISPATCH) == 1


def test_batches_are_split_with_room_for_more():
  rows = [{"x": np.arange(8.0, dtype=np.float32).reshape(4, 2) + 10 * i} for i in range(2)]
  split = np.asarray(parallel.split_steps(rows, 3)["x"])
  assert split.shape == (2, 3, 2, 2)
  np.testing.assert_array_equal(split[0, 1], rows[1]["x"][:2])
  np.testing.assert_array_equal(split[1, 0], rows[0]["x"][2:])
  np.testing.assert_array_equal(split[:, 2], 0)


CORES = """
import os
os.sched_getaffinity = lambda _: range(6)
import jax, vitx
from vitx.training import loop
loop.train = lambda *given, **more: print(jax.device_count())
vitx.train(vitx.load_config("digits:batch_size=24"), "unwritten")
"""


@pytest.mark.slow  # processes
@pytest.mark.parametrize(
  ("variable", "value", "count"),
  [
    ("UNRELATED", "", 6),
    ("JAX_NUM_CPU_DEVICES", "3", 3),
    ("XLA_FLAGS", "--xla_force_host_platform_device_count=2", 2),
  ],
)
def test_a_cpu_has_a_device_for_each_core_unless_the_user_says_otherwise(variable, value, count):
  unset = dict.fromkeys(("JAX_NUM_CPU_DEVICES", "XLA_FLAGS"))
  environment = {k: v for k, v in os.environ.items() if k not in unset} | {variable: value}
  command = [sys.executable, "-c", CORES]
  done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
  assert int(done.stdout) == count


@pytest.mark.parametrize(("batches", "count"), [((64,), 4), ((24,), 6), ((12, 8), 1), ((7,), 1)])
def test_batches_split_evenly_over_at_most_six_cores(batches, count):
  assert parallel.count_devices(batches, 6) == count


def test_devices_keep_the_pairs_that_mixup_mixes(monkeypatch):
  assert parallel.count_devices([50], 2) == 2 and parallel.count_devices([50], 2, 2) == 1
  assert parallel.count_devices([36], 4, 2) == 3 and parallel.count_devices([27], 4, 2) == 1
  multiples = []
  monkeypatch.setattr(parallel, "use_cores", lambda batches, multiple: multiples.append(multiple))
  for override in ("augment.mixup=0", "augment.mixup=0.4", "augment.cutmix=1"):
    phases.use_cores([load_config(f"digits:{override}")])
  assert multiples == [1, 2, 2]


def test_devices_stay_as_they_are_once_jax_has_begun():
  before = jax.device_count()
  parallel.use_cores([64])
  assert jax.device_count() == before
