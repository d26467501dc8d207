"""A step is independent of devices and micro-batches; averages, plateaus and float16."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training import small
from tests.training.optim.directions import settings
from vitx.config import default_config
from vitx.runtime import parallel
from vitx.runtime.evaluation import evaluation_step
from vitx.tasks.base import init_shapes, init_variables
from vitx.training.optim.optimizers import find_frozen, make_optimizer
from vitx.training.step import Rates, TrainState

# Without randomness, whose operations take half of the time to compile.
QUIET = {"augment": {}, "dropout": 0.0, "stochastic_depth": 0.0}


# Tests share these steps, so that their programs are compiled once.
@functools.cache
def plain_step():
  # Plain descent, since Adam would turn the rounding of vanishing gradients into whole steps.
  return small.make_step(optimizer=optax.identity(), schedule=lambda step: 0.1)


@functools.cache
def half_step():
  return small.make_step(small.task(**QUIET, dtype="float16"), half=True)


@pytest.mark.slow
def test_losses_agree_on_one_and_two_devices():
  """The task has augmentation, mixing, dropout and stochastic depth."""
  step = plain_step()
  one, _ = small.run(step, 20, devices=1)
  two, _ = small.run(step, 20, devices=2)
  np.testing.assert_allclose(two, one, rtol=1e-5)
  assert one[-1] < one[0]


@pytest.mark.slow
def test_micro_batches_change_nothing():
  plain = plain_step()
  whole, a = small.run(plain, 4, devices=1)
  parts, b = small.run(dataclasses.replace(plain, grad_accum_steps=4), 4, devices=1)
  np.testing.assert_allclose(parts, whole, rtol=1e-5)
  for x, y in zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_repeated_step_draws_equal_randomness():
  step = plain_step()
  first, _ = small.run(step, 3, devices=1)
  again, _ = small.run(step, 3, devices=1)
  np.testing.assert_array_equal(first, again)
  other, _ = small.run(step, 3, devices=1, seed=8)
  assert not np.array_equal(first[1:], other[1:])


@pytest.mark.parametrize("warmup", [True, False])
def test_an_average_may_be_short_at_first(warmup):
  step = small.make_step(ema_decay=0.99, ema_warmup=warmup)
  ema, params = {"kernel": jnp.array([4.0])}, {"kernel": jnp.array([2.0])}
  for count in (0, 3, 10_000):
    state = TrainState(jnp.int32(count), params, {}, None, ema, None, jnp.float32(1))
    decay = min(0.99, (1 + count) / (10 + count)) if warmup else 0.99
    average = step._average(state, params)["kernel"]
    np.testing.assert_allclose(average, 4 * decay + 2 * (1 - decay), rtol=1e-6)


def test_schedule_free_steps_equal_those_of_optax():
  """The rates warm up from 0, and one parameter is frozen."""
  start = {"a": np.float32([[1.0, -2.0], [0.5, 3.0]]), "frozen": np.float32([0.1])}
  rates = np.float32([0.0, 0.01, 0.02, *[0.03] * 20])
  base = optax.scale_by_learning_rate(lambda count: jnp.asarray(rates)[count])
  descent = optax.chain(optax.scale_by_rms(0.99, bias_correction=True, eps_in_sqrt=False), base)
  theirs = optax.contrib.schedule_free(descent, lambda count: jnp.asarray(rates)[count - 1])
  y, follow = {"a": start["a"]}, theirs.init({"a": start["a"]})
  config = settings(optimizer={"name": "schedule_free", "b2": 0.99, "weight_decay": 0.0})
  step = small.make_step(
    optimizer=make_optimizer(config, start), interpolation=0.9, frozen=frozenset({"frozen"})
  )
  state = step.begin({"params": start})
  for rate in rates:
    gradient = lambda tree: jax.tree.map(lambda x: 2 * x - 0.3, tree)  # noqa: E731
    updates, follow = theirs.update(gradient(y), follow, y)
    y = optax.apply_updates(y, updates)
    grads = gradient(state.params)
    direction, opt_state = step.optimizer.update(grads, state.opt_state, state.params)
    state = step._interpolate(state.replace(opt_state=opt_state), direction, rate)
  x = optax.contrib.schedule_free_eval_params(follow, y)
  assert np.abs(y["a"] - start["a"]).min() > 0.1 and np.abs(x["a"] - y["a"]).min() > 1e-3
  np.testing.assert_allclose(state.params["a"], y["a"], rtol=1e-5)
  np.testing.assert_allclose(state.ema["a"], x["a"], rtol=1e-5)
  np.testing.assert_array_equal(state.ema["frozen"], start["frozen"])
  np.testing.assert_array_equal(state.params["frozen"], start["frozen"])


@pytest.mark.slow
def test_training_accuracy_does_not_depend_on_devices_and_micro_batches():
  """The head starts at zero, so all classes tie, and the first class is the guess."""
  expected = np.mean(small.batch(0)["label"] == 0)
  assert 0 < expected < 1
  the_task = small.task(augment=default_config().augment.to_dict(), depth=1)
  for devices, accumulate in ((1, 4), (2, 2)):
    step = small.make_step(the_task, grad_accum_steps=accumulate)
    state = small.copies(small.initial(step), devices)
    _, metrics, _ = small.train(step, state, small.batch(0), devices)
    np.testing.assert_allclose(metrics["top1"], expected, rtol=1e-6)


@pytest.mark.slow
def test_plateau_scales_the_learning_rate():
  step = plain_step()
  state = small.copies(small.initial(step), 1)
  full, *_ = small.train(step, state, small.batch(0), 1)
  half, metrics, _ = small.train(step, state.replace(plateau=np.float32([0.5])), small.batch(0), 1)
  np.testing.assert_allclose(metrics["learning_rate"], 0.05)
  moved = lambda new: jax.tree.map(lambda a, b: np.asarray(a) - b, new.params, state.params)  # noqa: E731
  for a, b in zip(jax.tree.leaves(moved(full)), jax.tree.leaves(moved(half)), strict=True):
    np.testing.assert_allclose(a, 2 * b, rtol=1e-3, atol=1e-7)


@pytest.mark.slow  # compiles a step in float16
def test_float16_scales_and_skips_overflow():
  step = half_step()
  _, state = small.run(step, 3, devices=2)
  assert state.loss_scale.value == 2.0**16 and state.loss_scale.good_steps == 3
  huge = state.replace(loss_scale=state.loss_scale.replace(value=np.float32(3e38)))
  after, metrics, _ = small.train(step, small.copies(huge, 2), small.batch(0), 2)
  assert not np.isfinite(metrics["gradient_norm"]).any() and np.isfinite(metrics["loss"]).all()
  after = jax.tree.map(lambda x: x[0], jax.device_get(after))
  for x, y in zip(jax.tree.leaves(huge.params), jax.tree.leaves(after.params), strict=True):
    np.testing.assert_array_equal(x, y)
  assert after.loss_scale.value == np.float32(3e38) / 2 and after.step == 4


@pytest.mark.slow
def test_float16_follows_float32():
  steps = 6  # The seventh gradient overflows in float16, and its step is skipped.
  expected, _ = small.run(small.make_step(small.task(**QUIET)), steps, devices=2)
  losses, _ = small.run(half_step(), steps, devices=2)
  np.testing.assert_allclose(losses, expected, rtol=2e-2)


@pytest.mark.slow
def test_the_whole_step_lowers_for_accelerators():
  step = small.make_step(plain_step().task, axis=parallel.AXIS, grad_accum_steps=2, ema_decay=0.9)
  state = jax.eval_shape(step.init, jax.random.key(0))
  double = lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype)  # noqa: E731
  arguments = (state, Rates.create(), {}, small.batch(0), np.int32(0))
  over_devices = jax.jit(jax.vmap(step.train, axis_name=parallel.AXIS))
  traced = over_devices.trace(*jax.tree.map(double, arguments))
  for platform in ("cuda", "tpu"):
    assert "stablehlo" in traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.slow
def test_evaluation_sums_over_devices_and_masks():
  task = small.task(depth=1)
  variables = jax.device_get(jax.jit(lambda key: init_variables(task, key))(jax.random.key(0)))
  wave = lambda x: (x + 0.1 * np.sin(np.arange(x.size).reshape(x.shape))).astype(x.dtype)  # noqa: E731
  leaves = jax.tree.map(wave, variables)
  batch = small.batch(3) | {"mask": np.arange(16) < 13}
  del batch["index"]
  alone = jax.jit(evaluation_step(task))(leaves["params"], {}, {}, batch)
  spread = parallel.compile_once(evaluation_step(task, parallel.AXIS))
  two = spread(parallel.replicate(leaves["params"]), {}, {}, parallel.split(batch))
  for name, value in alone["sums"].items():
    np.testing.assert_allclose(two["sums"][name][0], value, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(
    parallel.join(two["rows"]["probabilities"]), alone["rows"]["probabilities"], rtol=1e-5
  )
  assert alone["sums"]["count"] == 13


@pytest.mark.slow
def test_frozen_parameters_keep_their_bits_with_average_and_statistics():
  """The average of a frozen parameter keeps its bits, which rounding would change."""
  frozen = small.task(
    stem={"name": "normalized", "channels": (4,), "kernels": (3,), "strides": (1,), "patch": 4},
    augment={},
    depth=1,
  )
  shapes = init_shapes(frozen)["params"]
  config = settings(freeze=("stem/.*",))
  step = small.make_step(
    frozen,
    optimizer=make_optimizer(config, shapes),
    frozen=find_frozen(config, shapes),
    ema_decay=0.9,
  )
  initial = small.initial(step)
  _, ended = small.run(step, 2, devices=1)
  for tree in ("params", "ema"):
    old, new = getattr(initial, tree), getattr(ended, tree)
    jax.tree.map(np.testing.assert_array_equal, old["stem"], new["stem"])
    assert not np.array_equal(old["head"]["kernel"], new["head"]["kernel"])
  assert initial.model_state["batch_stats"]["stem"]
  jax.tree.map(np.testing.assert_array_equal, initial.model_state, ended.model_state)
