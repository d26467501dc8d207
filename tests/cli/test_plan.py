"""The planner: what it says of a third size is what the compiler says of it."""

import argparse

import jax
import pytest

from configs import digits
from vitx.analysis import cost
from vitx.cli import plan
from vitx.cli.arguments import plan as arguments
from vitx.cli.main import main
from vitx.cli.summary import complete_config
from vitx.errors import ConfigError
from vitx.ops.implementation import choosing_by
from vitx.ops.rule import FAMILIES, Rule
from vitx.training.trial import measure_training_bytes

SMALL = "model.depth=1,model.width=16,model.num_heads=2,model.mlp_dim=32"


def complete(*overrides):
  return complete_config(digits.get_config(",".join([SMALL, *overrides])))


def test_memory_of_a_third_size(data_dir):
  config = complete(f"batch_size={64 * jax.device_count()}")
  planned = plan.make_plan(config, timed=False, most=16)
  assert planned.sizes == (4, 16) and planned.seconds is None
  assert planned.bytes.at(64) == pytest.approx(
    measure_training_bytes(complete("batch_size=64")), rel=0.1
  )


@pytest.mark.slow  # compiles several steps
def test_small_sizes_pick_what_the_batch_picks(data_dir):
  """At 32 examples a device 64 matrices; the sizes compiled have 8 and 32."""
  config = complete("batch_size=64")
  nothing = dict.fromkeys(FAMILIES, ())
  needed = {}
  for limit in (0, 32, 64):
    bounds = {"pattern_blocks": ((1000, limit),)} if limit else {}
    with choosing_by(Rule("any", "a test", nothing | bounds)):
      needed[limit] = plan.make_plan(config, timed=False).bytes
  assert needed[0] == needed[32] != needed[64]


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


def test_a_batch_that_fits(data_dir, capsys):
  assert main(["plan", "--config", f"configs/digits.py:{SMALL}", "--memory", "4GB"]) == 0
  out = capsys.readouterr().out
  assert f"memory {4 / jax.device_count():.2f} GB; steps of 8 and 32 examples" in out
  assert "s an example" in out and out.endswith("s a step: it fits\n")


@pytest.mark.slow  # compiles six steps
def test_sizes_that_do_not_fit_are_not_run(data_dir, monkeypatch):
  config = complete(f"batch_size={64 * jax.device_count()}")
  needed = plan.make_plan(config, timed=False).bytes.at(64)
  monkeypatch.setattr(plan, "find_free_bytes", lambda: 0.6 * needed * jax.device_count())
  planned = plan.make_plan(config)
  assert planned.sizes == (4, 16) and planned.seconds is not None


@pytest.mark.slow  # compiles a step for each remedy
def test_what_helps_where_it_does_not_fit(data_dir, capsys):
  config = complete()
  planned = plan.make_plan(config, timed=False)
  memory = planned.bytes.at(17) + 10  # of a device's 32: micro-batches of 16
  arguments = ["--memory", f"{memory * jax.device_count() / 1e6:.6f}MB", "--no-time"]
  assert main(["plan", "--config", f"configs/digits.py:{SMALL}", *arguments]) == 0
  out = capsys.readouterr().out.splitlines()
  devices = jax.device_count()
  accum = f"grad_accum_steps={64 // devices // 16}"
  assert f"largest batch_size that fits: {17 * devices}" in out
  head = next(i for i, line in enumerate(out) if line.startswith("setting"))
  rows = {line.split()[0]: line for line in out[head + 1 :]}
  assert list(rows) == [
    accum,
    "model.dtype=bfloat16",
    "model.remat=True",
    "model.dtype=bfloat16,model.remat=True",
    *list(rows)[4:],
  ]
  used = measure_training_bytes(complete(f"batch_size={64 // devices}", accum))
  assert f"{used / 1e6:.2f} MB" in rows[accum]
  assert ("fits" in rows[accum]) == (used <= memory)


def test_nothing_fits(data_dir, capsys):
  main(["plan", "--config", f"configs/digits.py:{SMALL}", "--memory", "0.01MB", "--no-time"])
  out = capsys.readouterr().out
  assert "largest batch_size that fits: none" in out
  assert out.splitlines()[-1].startswith("None fits")


@pytest.mark.parametrize("text", ["16", "16gb", "0GB", "-1GB", "nanGB", "1.2.3GB"])
def test_memory_that_cannot_be_read(text):
  with pytest.raises(argparse.ArgumentTypeError, match="16GB"):
    arguments.parse_memory(text)
  assert arguments.parse_memory("1.5 GiB") == 1.5 * 2**30


def test_a_backend_that_tells_nothing(monkeypatch, data_dir):
  monkeypatch.setattr(cost, "compiled_bytes", lambda compiled: None)
  with pytest.raises(ConfigError, match="does not say"):
    plan.make_plan(complete(), timed=False)
