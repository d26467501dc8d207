"""The cost of a row's training steps, whose memory is predicted from two batch sizes."""

import types

import flax.linen as nn
import jax
import pytest

from configs import digits, vix_cifar10
from vitx.analysis import cost
from vitx.analysis.implementations import implementations
from vitx.benchmark import rows, timing
from vitx.benchmark.timing import TooLargeError
from vitx.config.errors import ConfigError
from vitx.data import sources
from vitx.ops.implementation import choosing_by
from vitx.ops.rule import FAMILIES, Rule
from vitx.tasks import build_task
from vitx.tasks.base import find_layout
from vitx.tasks.settle import complete_config
from vitx.training import trial

SMALL = "model.depth=1,model.width=16,model.num_heads=2,model.mlp_dim=32"
TINY = "softmax,model.depth=1,model.width=8,model.num_heads=1,model.mlp_dim=8,stem=linear"


def complete(*overrides):
  return complete_config(digits.get_config(",".join(overrides)))


@pytest.mark.slow(reason="compiles a step of training and three of inference")
def test_a_row_is_counted_and_compiled():
  config = complete(TINY, "stem.patch=4", "batch_size=30", "grad_accum_steps=3")
  counted, compiled = rows.count(config), rows.compile_costs(config)
  assert 0 < counted["gflops_products"] < counted["gflops"]
  parts = ("parameters", "optimizer", "activations")
  assert compiled["train_mb"] == pytest.approx(sum(compiled[f"train_{p}_mb"] for p in parts))
  assert compiled["train_parameters_mb"] == 4 * counted["parameters"] / 1e6
  assert compiled["inference_1_mb"] < compiled["inference_32_mb"] < compiled["inference_128_mb"]


class OwnNetwork(nn.Module):
  """A network of a user, called as a token mixer is: `train` has no default."""

  num_classes: int

  @nn.compact
  def __call__(self, images, *, train):
    return nn.Dense(self.num_classes)(images.mean((1, 2)))


def test_a_network_of_ones_own_is_counted():
  config = complete("model=tests.benchmark.test_rows:OwnNetwork")
  assert rows.count(config)["parameters"] == 20
  assert find_layout(build_task(config)) is None


def test_a_complete_config_opens_and_allocates_nothing(monkeypatch):
  monkeypatch.setattr(sources, "open_dataset", None)
  config = vix_cifar10.get_config("vip,data.image_size=1024,data.data_dir=/nowhere")
  before = len(jax.live_arrays())
  row = rows.count(complete_config(config))
  assert row["gflops_products"] > 100 and row["parameters"] > 1024**2 * 128
  assert len(jax.live_arrays()) <= before + 4


@pytest.mark.slow  # compiles three steps
def test_two_sizes_predict_the_memory_of_a_third(data_dir):
  row, said = ("softmax", SMALL, "stem=linear,stem.patch=2"), []
  config = complete(*row, f"batch_size={64 * jax.device_count()},steps_per_dispatch=1")
  needs = rows.measure_needs(config, said.append, timed=False, most=16)
  assert "4 and 16" in said[0] and list(needs) == ["step_mb", "example_mb"]
  assert rows.scale(needs, "mb", 64) * 1e6 == pytest.approx(
    trial.measure_training_bytes(complete(*row, "batch_size=64")), rel=0.15
  )


def test_sizes_beyond_the_free_memory_are_not_run(monkeypatch):
  program = lambda size: types.SimpleNamespace(program=types.SimpleNamespace(compiled=size))  # noqa: E731
  timed = []
  monkeypatch.setattr(
    trial, "compile_dispatch", lambda config, _: program(rows.split_batch(config))
  )
  monkeypatch.setattr(cost, "compiled_bytes", lambda size: int(1e6 + 1e5 * size))
  monkeypatch.setattr(
    rows, "_time", lambda steps, _: timed.extend(x.program.compiled for x in steps) or [1.0, 2.0]
  )
  config = complete(SMALL, f"batch_size={64 * jax.device_count()},steps_per_dispatch=1")
  needed = rows.scale(rows.measure_needs(config, print, timed=False), "mb", 64)
  assert needed == pytest.approx(7.4) and not timed
  monkeypatch.setattr(timing, "find_free_bytes", lambda: 0.6e6 * needed * jax.device_count())
  needs = rows.measure_needs(config, print, timed=True)
  assert timed == [4, 16] and rows.scale(needs, "s", 16) == pytest.approx(2)


@pytest.mark.slow
def test_small_sizes_pick_the_implementation_of_the_batch(data_dir, monkeypatch):
  """The compiled sizes pick the implementations that the whole batch picks.

  The batch has 64 attention matrices on a device; the compiled sizes, 8 and 32 examples, have
  fewer.
  """
  picked = {}

  def compile_dispatch(config, steps):
    task, size = build_task(config), rows.split_batch(config)
    chosen = implementations(task.model, (size, *task.input_spec.shape[1:]))
    picked.setdefault(limit, {})[size] = set(chosen.values())
    return types.SimpleNamespace(program=types.SimpleNamespace(compiled=size))

  monkeypatch.setattr(trial, "compile_dispatch", compile_dispatch)
  monkeypatch.setattr(cost, "compiled_bytes", lambda size: size)
  config = complete(SMALL, "batch_size=64,steps_per_dispatch=1")
  nothing = dict.fromkeys(FAMILIES, ())
  for limit in (32, 64):
    bounds = {"pattern_blocks": ((1000, limit),)}
    with choosing_by(Rule("any", "a test", nothing | bounds)):
      rows.measure_needs(config, print, timed=False)
  kernelized, masked = ({8: {way}, 32: {way}} for way in ("kernelized", "masked"))
  assert picked == {32: kernelized, 64: masked}


def test_the_largest_batch_is_a_multiple_that_fits():
  needs = rows.grow("mb", (1, 2), (110, 120))
  assert needs == {"step_mb": 100, "example_mb": 10}
  for memory, step, most in ((145, 1, 4), (145, 2, 4), (139, 2, 2), (119, 2, 0)):
    assert rows.find_largest(needs, memory * 1e6, step) == most
  with pytest.raises(ConfigError, match="does not grow"):
    rows.find_largest(rows.grow("mb", (1, 2), (100, 100)), 2e8, 1)


@pytest.mark.parametrize(
  ("batch", "unit", "sizes"),
  [(1, 1, (2, 8)), (64, 1, (16, 64)), (12, 1, (3, 12)), (62, 4, (12, 60)), (64, 32, (32, 64))],
)
def test_sizes_are_multiples_of_the_micro_batches(batch, unit, sizes):
  assert rows.probe_sizes(batch, unit) == sizes


@pytest.mark.parametrize("written", [True, False])
def test_remedies_reduce_the_memory(written, monkeypatch):
  """The memory follows from the batch, the dtype and the recomputation; nothing is compiled."""
  devices, config = jax.device_count(), digits.get_config(SMALL)
  for name in () if written else ("dtype", "remat"):  # Their defaults are float32 and False.
    del config.model[name]

  def measure_bytes(config):
    size = (
      config.batch_size / config.grad_accum_steps / (1 + (config.model.get("dtype") == "bfloat16"))
    )
    return int(1e6 + 1e5 * size / (4 if config.model.get("remat") else 1))

  monkeypatch.setattr(trial, "measure_training_bytes", measure_bytes)
  needs = {"step_mb": 1, "example_mb": 0.1}
  remedies = rows.measure_remedies(complete_config(config), needs, 1e6 + 17e5 + 10)
  # 17 of the 64 / devices examples fit: micro-batches of 16.
  assert {tuple(settings.items()): used / 1e6 for settings, used in remedies} == {
    (("grad_accum_steps", 64 // devices // 16),): 2.6,
    (("model.dtype", "bfloat16"),): 1 + 3.2 / devices,
    (("model.remat", True),): 1 + 1.6 / devices,
    (("model.dtype", "bfloat16"), ("model.remat", True)): 1 + 0.8 / devices,
  }


def test_peaks_are_measured_where_rows_fit(monkeypatch):
  def peak_bytes(prepare, make, text, **_):
    if text == "large":
      raise TooLargeError("needs 9 GB")
    return 3_000_000

  monkeypatch.setattr(timing, "peak_bytes", peak_bytes)
  peaks = rows.measure_peaks({"one": "large", "two": "small"}, print)
  assert peaks == {"two": {"train_peak_mb": 3.0}}
  monkeypatch.setattr(timing, "peak_bytes", lambda *_, **__: rows._read_peak())
  assert rows.measure_peaks({"one": "a"}, print) == {}  # The device reports no peak.


@pytest.mark.slow(reason="compiles and runs steps of training and inference")
def test_rates_are_measured(monkeypatch):
  monkeypatch.setattr(timing, "GROWTH", 1e9)  # A batch of two is the last one.
  config = complete(TINY, "stem.patch=4")
  rates = rows.measure_rates(config, repeats=1, seconds=0.1, say=lambda text: None)
  assert rates["train_per_s"] > 0 and rates["inference_per_s"] > 0
  assert rates["train_batch"] in (1, 2) and rates["inference_batch"] in (1, 2)
