"""The planner: what it says of a third size is what the compiler says of it."""

import argparse
import types

import jax
import pytest

from configs import digits
from vitx.analysis import cost
from vitx.analysis.implementations import implementations
from vitx.cli import plan
from vitx.cli.arguments import plan as arguments
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.ops.implementation import choosing_by
from vitx.ops.rule import FAMILIES, Rule
from vitx.tasks import build_task
from vitx.training.trial import complete_config, measure_training_bytes

SMALL = "model.depth=1,model.width=16,model.num_heads=2,model.mlp_dim=32"


def complete(*overrides):
  return complete_config(digits.get_config(",".join([SMALL, *overrides])))


@pytest.fixture
def uncompiled(monkeypatch):
  """Lets a step need 1 MB and 0.1 MB an example of a device; the list says what was timed."""
  timed = []

  def compile_steps(config, size, steps):
    return types.SimpleNamespace(program=types.SimpleNamespace(compiled=size, steps=steps))

  def measure(programs, config):
    timed.append([made.program.compiled for made in programs])
    return [1.0, 2.0]

  def measure_bytes(config):
    build_task(config)  # it is a network
    size = config.batch_size / config.grad_accum_steps  # of one device
    if config.model.dtype == "bfloat16":
      size /= 2
    return int(1e6 + 1e5 * size / (4 if config.model.remat else 1))

  monkeypatch.setattr(plan, "_compile", compile_steps)
  monkeypatch.setattr(plan, "_time", measure)
  monkeypatch.setattr(plan, "measure_training_bytes", measure_bytes)
  monkeypatch.setattr(cost, "compiled_bytes", lambda size: int(1e6 + 1e5 * size))
  return timed


@pytest.mark.slow  # compiles three steps
def test_memory_of_a_third_size(data_dir):
  config = complete(f"batch_size={64 * jax.device_count()},steps_per_dispatch=1")
  planned = plan.make_plan(config, timed=False, most=16)
  assert planned.sizes == (4, 16) and planned.seconds is None
  assert planned.bytes.at(64) == pytest.approx(
    measure_training_bytes(complete("batch_size=64")), rel=0.1
  )


def test_small_sizes_pick_what_the_batch_picks(data_dir, monkeypatch):
  """At 32 examples a device 64 matrices; the sizes compiled have fewer, 8 examples and 32."""
  picked = {}

  def compile_dispatch(config, steps):
    task, size = build_task(config), plan.share(config)
    chosen = implementations(task.model, (size, *task.input_spec.shape[1:]))
    picked.setdefault(limit, {})[size] = set(chosen.values())
    return types.SimpleNamespace(program=types.SimpleNamespace(compiled=size))

  monkeypatch.setattr(plan, "compile_dispatch", compile_dispatch)
  monkeypatch.setattr(cost, "compiled_bytes", lambda size: size)
  config = complete("batch_size=64,steps_per_dispatch=1")
  nothing = dict.fromkeys(FAMILIES, ())
  for limit in (0, 32, 64):
    bounds = {"pattern_blocks": ((1000, limit),)} if limit else {}
    with choosing_by(Rule("any", "a test", nothing | bounds)):
      plan.make_plan(config, timed=False)
  kernelized, masked = ({8: {way}, 32: {way}} for way in ("kernelized", "masked"))
  assert picked == {0: kernelized, 32: kernelized, 64: masked}


def test_the_largest_batch_is_a_multiple_that_fits():
  planned = plan.Plan((1, 2), plan.Line(fixed=100, each=10), None)
  assert planned.largest(145, 1) == 4
  assert planned.largest(145, 2) == 4
  assert planned.largest(139, 2) == 2
  assert planned.largest(119, 2) == 0
  with pytest.raises(ConfigError, match="does not grow"):
    plan.Plan((1, 2), plan.Line(fixed=100, each=0), None).largest(200, 1)


@pytest.mark.parametrize(
  ("batch", "unit", "sizes"),
  [(1, 1, (2, 8)), (64, 1, (16, 64)), (12, 1, (3, 12)), (62, 4, (12, 60)), (64, 32, (32, 64))],
)
def test_sizes_are_multiples_of_the_micro_batches(batch, unit, sizes):
  assert plan.probe_sizes(batch, unit) == sizes


@pytest.mark.slow  # compiles two steps and times them
def test_a_batch_that_fits(data_dir, capsys, monkeypatch):
  monkeypatch.setattr(plan, "SECONDS", 0.01)
  config = f"configs/digits.py:softmax,{SMALL},steps_per_dispatch=2"
  assert main(["plan", "--config", config, "--memory", "4GB"]) == 0
  out = capsys.readouterr().out
  assert f"memory {4 / jax.device_count():.2f} GB; steps of 8 and 32 examples" in out
  assert "s an example" in out and out.endswith("s a step: it fits\n")


def test_sizes_that_do_not_fit_are_not_run(uncompiled, monkeypatch):
  config = complete(f"batch_size={64 * jax.device_count()},steps_per_dispatch=1")
  needed = plan.make_plan(config, timed=False).bytes.at(64)
  assert needed == pytest.approx(7.4e6) and not uncompiled
  monkeypatch.setattr(plan, "find_free_bytes", lambda: 0.6 * needed * jax.device_count())
  planned = plan.make_plan(config)
  assert planned.sizes == (4, 16) and uncompiled == [[4, 16]]
  assert planned.seconds.at(16) == pytest.approx(2)


def test_what_helps_where_it_does_not_fit(uncompiled, capsys):
  devices = jax.device_count()
  memory = 1e6 + 17e5 + 10  # of a device's 32 examples 17 fit: micro-batches of 16
  arguments = ["--memory", f"{memory * devices / 1e6:.6f}MB", "--no-time"]
  assert main(["plan", "--config", f"configs/digits.py:{SMALL}", *arguments]) == 0
  out = capsys.readouterr().out.splitlines()
  accum = f"grad_accum_steps={64 // devices // 16}"
  assert f"largest batch_size that fits: {17 * devices}" in out and not uncompiled
  head = next(i for i, line in enumerate(out) if line.startswith("setting"))
  assert [line.split() for line in out[head + 1 :]] == [
    [accum, "2.60", "MB", "fits"],
    ["model.dtype=bfloat16", "2.60", "MB", "fits"],
    ["model.remat=True", "1.80", "MB", "fits"],
    ["model.dtype=bfloat16,model.remat=True", "1.40", "MB", "fits"],
  ]


def test_nothing_fits(uncompiled, capsys):
  main(["plan", "--config", f"configs/digits.py:{SMALL}", "--memory", "0.01MB", "--no-time"])
  out = capsys.readouterr().out
  assert "largest batch_size that fits: none" in out
  assert "grad_accum_steps=32,model.dtype=bfloat16,model.remat=True" in out
  assert out.splitlines()[-1].startswith("None fits")


@pytest.mark.parametrize("text", ["16", "16gb", "0GB", "-1GB", "nanGB", "1.2.3GB"])
def test_memory_that_cannot_be_read(text):
  with pytest.raises(argparse.ArgumentTypeError, match="16GB"):
    arguments.parse_memory(text)
  assert arguments.parse_memory("1.5 GiB") == 1.5 * 2**30


def test_a_backend_that_tells_nothing(uncompiled, monkeypatch):
  monkeypatch.setattr(cost, "compiled_bytes", lambda compiled: None)
  with pytest.raises(ConfigError, match="does not say"):
    plan.make_plan(complete("steps_per_dispatch=1"), timed=False)
