"""Steps with stacked parameters: equal bits, and a program that does not grow with the depth."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vitx
from tests import runs
from tests.tasks.test_density import IMAGES
from tests.training.interruption import train_until
from tests.training.optim.directions import settings
from vitx.configs.density_digits import get_config
from vitx.models import stacked
from vitx.tasks import build_task
from vitx.tasks.base import init_variables
from vitx.tasks.settle import resolve
from vitx.training import loop
from vitx.training.experiment import batch_shapes, make_step
from vitx.training.optim.optimizers import DECAY_MASKS, ELEMENTWISE, make_optimizer
from vitx.training.parameters import parameter_names
from vitx.training.step import Rates

SMALL = (
  "dense,model.width=8,model.depth=4,model.num_heads=2,model.mlp_dim=16,model.dropout=0.0,"
  "model.layer_cycle=2,ema_decay=0.9,grad_clip_norm=None"
)
RATES = Rates.create(learning_rate=1e-2)
# Optimized, some products and sums become one operation with one rounding, others not.
EXACT = {"xla_backend_optimization_level": 0}


@functools.cache
def make(*overrides):
  """Returns the step of a small density model of gray digits, and its resolved config."""
  config = resolve(get_config(runs.replace(SMALL, *overrides)), IMAGES)
  return make_step(config, build_task(config), jnp.ones_like)[0], config


def by_name(step, config):
  """Returns the step with every parameter by its name, unstacked."""
  init = lambda: init_variables(step.task, jax.random.key(0))  # noqa: E731
  params = jax.eval_shape(init)["params"]
  return dataclasses.replace(step, cycle=0, optimizer=make_optimizer(config, params))


def batch(step, number, rows=4):
  generator = np.random.default_rng(number)
  shapes = batch_shapes(step.task, rows)
  arrays = {k: generator.integers(0, 17, x.shape).astype(x.dtype) for k, x in shapes.items()}
  return arrays | {"index": np.arange(rows, dtype=np.int32)}


def run(step, steps=3):
  """Returns the state after some steps, by name, and the metrics of the last step."""
  state = jax.jit(step.init)(jax.random.key(0))
  train = jax.jit(step.train, compiler_options=EXACT)
  for number in range(steps):
    state, metrics, _ = train(state, RATES, {}, batch(step, number), np.int32(0))
  return stacked.unstack(jax.device_get(state)), metrics


def same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


def directions(config, repeats=2):
  """Returns an optimizer's directions and state after some gradients, by name and stacked."""
  generator = np.random.default_rng(0)

  def draw():
    normal = lambda *shape: generator.normal(size=shape).astype(np.float32)  # noqa: E731
    names = [f"block_{i}" for i in range(2 * repeats)]
    blocks = {name: {"mlp": {"kernel": normal(3, 4), "bias": normal(4)}} for name in names}
    return {"stem": {"embedding": normal(5, 3)}, "norm": {"scale": normal(4)}, **blocks}

  params, *gradients = (draw() for _ in range(3))

  def update(optimizer, params, gradients):
    state = optimizer.init(params)
    for grads in gradients:
      direction, state = optimizer.update(grads, state, params)
    return direction, state

  def run(optimizer, *trees):
    return jax.jit(functools.partial(update, optimizer), compiler_options=EXACT)(*trees)

  expected = run(make_optimizer(config, params), params, gradients)
  optimizer = make_optimizer(config, stacked.first_cycle(params, 2))
  result = run(optimizer, stacked.stack(params, 2), stacked.stack(gradients, 2))
  assert len(jax.tree.leaves(result)) < len(jax.tree.leaves(expected))
  return expected, stacked.unstack(jax.device_get(result))


@pytest.mark.parametrize(
  ("name", "mask"), list(zip(itertools.cycle(sorted(ELEMENTWISE)), DECAY_MASKS, strict=False))
)
def test_stacked_optimizers_give_the_same_bits(name, mask):
  config = settings(optimizer=dict(name=name, weight_decay=0.1), weight_decay_mask=mask)
  expected, result = directions(config)
  same(result, expected)


def test_clipping_agrees_but_for_the_order_of_its_sum():
  config = settings(optimizer=dict(name="sgd", momentum=0.0), grad_clip_norm=1e-3)
  (expected, _), (result, _) = directions(config)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), result, expected)


MUCH = ("model.dropout=0.1", "model.remat=True", "model.dtype=float16", "grad_accum_steps=2")
MUCH += ("model.depth=2", "model.layer_cycle=1")


@pytest.mark.slow
def test_stacked_steps_give_the_same_bits():
  """Parameters, moments and averages are equal; only the norm is summed in another order."""
  step, config = make(*MUCH)
  assert step.cycle == 1
  (state, metrics), (expected, others) = run(step), run(by_name(step, config))
  same(state, expected)
  assert metrics["loss"] == others["loss"]
  np.testing.assert_allclose(metrics["gradient_norm"], others["gradient_norm"], rtol=1e-6)
  for layer in range(2):
    assert all(np.any(m) for m in jax.tree.leaves(state.opt_state[0].mu[f"block_{layer}"]))


@pytest.mark.slow  # lowers two steps
def test_a_deeper_model_has_the_same_program():
  """The program of stacked parameters does not grow with L; that of unstacked parameters does."""

  def operations(step):
    shapes = jax.eval_shape(step.init, jax.random.key(0))
    arguments = (shapes, RATES, {}, batch_shapes(step.task, 1), jax.ShapeDtypeStruct((), jnp.int32))
    return len(jax.make_jaxpr(step.train)(*arguments).eqns)

  deep, config = make("model.depth=8")
  count = operations(deep)
  assert operations(make()[0]) == count
  assert operations(by_name(deep, config)) > 2 * count


@pytest.mark.parametrize(
  ("overrides", "cycle"),
  [
    ((), 2),
    (("model.layer_cycle=0",), 0),
    (("optimizer=muon",), 0),
    (("optimizer=optax:lamb",), 0),
    (("layer_decay=0.9",), 0),
    (("rates=(('head/.*',2.0),)",), 0),
    (("freeze=('block_0/.*',)",), 0),
  ],
)
def test_layers_are_stacked_where_the_optimizer_treats_numbers_alike(overrides, cycle):
  assert make(*overrides)[0].cycle == cycle


@pytest.mark.slow  # runs, and runs again in two parts
def test_a_run_keeps_every_parameter_by_its_name_and_resumes_to_the_same_bits(
  tmp_path, monkeypatch
):
  cadences = "checkpoint.every=3 steps", "evaluation.every=4 steps", "log_every=2 steps"
  run = "duration=8 steps", "schedule.warmup=2 steps", "model.depth=2", "model.layer_cycle=1"
  config = get_config(runs.replace(SMALL, "model.dropout=0.1", *cadences, *run))
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  result = loop.train(config, whole)
  assert not train_until(7, config, parts, monkeypatch).finished
  assert loop.train(config, parts).test == result.test
  assert runs.rows(parts) == runs.rows(whole)
  state = runs.final_state(whole)
  same(runs.final_state(parts), state)
  blocks = {"block_0", "block_1"}
  for tree in (state["params"], state["ema"]):
    assert blocks < tree.keys()
  assert not any("cycles" in name for name in parameter_names(state))
  assert vitx.evaluate(whole)["bits"] == pytest.approx(result.test["bits"], rel=1e-6)
