"""Learning rates at key steps, the warm-up, and settings that cannot work."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from vitx.config.errors import ConfigError
from vitx.training.optim.schedules import SCHEDULES, make_schedule

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "timm_images.npz")
PEAK, TOTAL, PER_EPOCH = 0.4, 100, 12.5
FIELDS = {"step": {"boundaries": ("4 epochs", "75 steps")}}


def rates(spec, total=TOTAL):
  """Returns the rate at each step and at the end, (total + 1,)."""
  schedule = make_schedule(spec, total, PER_EPOCH)
  return np.float32(PEAK) * np.asarray(jax.vmap(schedule)(np.arange(total + 1, dtype=np.int32)))


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"epoch_cosine"}))
def test_warmup_reaches_the_peak_at_its_last_step(name):
  spec = {"name": name, "warmup": "10 steps", **FIELDS.get(name, {})}
  values = rates(spec)
  np.testing.assert_allclose(values[:10], PEAK * np.arange(1, 11) / 10, rtol=1e-6)
  np.testing.assert_allclose(values[10], PEAK, rtol=1e-6)
  assert np.all(values <= PEAK * (1 + 1e-6)) and np.all(values[:TOTAL] > 0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_without_warmup_starts_at_the_peak(name):
  values = rates({"name": name, **FIELDS.get(name, {})})
  assert values[0] == np.float32(PEAK)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rate_is_a_float32_scalar_under_jit_too(name):
  schedule = make_schedule({"name": name, "warmup": 3, **FIELDS.get(name, {})}, TOTAL, PER_EPOCH)
  for step in (0, 1, 2, 3, 50, 99):
    traced = jax.jit(schedule)(jnp.int32(step))
    assert traced.dtype == jnp.float32 and traced.shape == ()
    np.testing.assert_allclose(traced, schedule(step), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("warmup", [0, 20])
def test_cosine_falls_on_half_a_wave(warmup):
  values = rates({"name": "cosine", "warmup": f"{warmup} steps", "final": 0.1})
  share = (np.arange(warmup, TOTAL + 1) - warmup) / (TOTAL - warmup)
  expected = PEAK * (0.1 + 0.9 * (1 + np.cos(math.pi * share)) / 2)
  np.testing.assert_allclose(values[warmup:], expected, rtol=1e-5)


@pytest.mark.parametrize("warmup", [0, 20])
def test_linear_falls_on_a_straight_line(warmup):
  values = rates({"name": "linear", "warmup": warmup, "final": 0.25})
  share = (np.arange(warmup, TOTAL + 1) - warmup) / (TOTAL - warmup)
  np.testing.assert_allclose(values[warmup:], PEAK * (1 - 0.75 * share), rtol=1e-5)


@pytest.mark.parametrize("per_epoch", [40, 1251.1, 2.5])
def test_epoch_cosine_agrees_with_timm(per_epoch):
  fields = dict(name="epoch_cosine", warmup="5 epochs")
  # DeiT: its loop steps the schedule one epoch late and ends with the cosine.
  deit = make_schedule(
    {**fields, "start": 1e-3, "final": 0.01, "delay": 1}, round(300 * per_epoch), per_epoch
  )
  # LV-ViT: ten epochs more.
  ends = {"start": 1e-6 / 1.6e-3, "final": 1e-5 / 1.6e-3, "cooldown": "10 epochs"}
  lv_vit = make_schedule({**fields, **ends}, round(310 * per_epoch), per_epoch)
  for schedule, peak, expected in (
    (deit, 1e-3, GOLDEN["rates_deit"][:300]),
    (lv_vit, 1.6e-3, GOLDEN["rates_lv_vit"][1:]),
  ):
    epochs = np.arange(len(expected))
    first = np.ceil(epochs * per_epoch).astype(np.int32)  # steps; and the last of each
    last = np.ceil((epochs + 1) * per_epoch).astype(np.int32) - 1
    for steps in (first, last):
      np.testing.assert_allclose(peak * jax.vmap(schedule)(steps), expected, rtol=1e-5)


def test_epoch_cosine_needs_room_for_its_end():
  for spec, message in (
    ({"cooldown": "8 epochs"}, r"schedule\.cooldown='8 epochs' takes 100 steps.*only 100"),
    ({"warmup": "9 epochs"}, r"schedule\.warmup='9 epochs'"),
  ):
    with pytest.raises(ConfigError, match=message):
      rates({"name": "epoch_cosine", **spec})


def test_step_falls_at_its_boundaries():
  values = rates({"name": "step", "boundaries": ("4 epochs", "75 steps"), "factor": 0.5})
  expected = PEAK * np.repeat([1, 0.5, 0.25], [50, 25, 26])
  np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_step_counts_from_the_start_of_the_run_with_a_warmup_too():
  values = rates({"name": "step", "warmup": 10, "boundaries": (50,)})
  np.testing.assert_allclose(values[[49, 50]], [PEAK, PEAK / 10], rtol=1e-6)


def test_a_warmup_may_fill_the_run():
  for name in ("cosine", "linear", "constant"):
    values = rates({"name": name, "warmup": TOTAL})
    np.testing.assert_allclose(values[:TOTAL], PEAK * np.arange(1, 101) / 100, rtol=1e-6)


def test_a_schedule_is_a_config_or_a_bare_name():
  spec = ConfigDict({"name": "step", "boundaries": ("4 epochs",), "warmup": "1 epochs"})
  assert rates(spec)[60] == pytest.approx(PEAK / 10)
  assert rates("constant")[60] == pytest.approx(PEAK)


@pytest.mark.parametrize(
  "spec, message",
  [
    ({"name": "cosine", "fina": 0.1}, r"schedule\.fina.*Did you mean 'final'"),
    ({"name": "cosine", "warmup": "101 steps"}, r"schedule\.warmup='101 steps'.*only 100"),
    ({"name": "step"}, r"schedule\.boundaries"),
    ({"name": "step", "boundaries": (60, 50)}, r"schedule\.boundaries.*increase"),
  ],
)
def test_schedules_that_cannot_work_are_refused(spec, message):
  with pytest.raises(ConfigError, match=message):
    make_schedule(spec, TOTAL, PER_EPOCH)(0)
