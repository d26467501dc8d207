"""Batch statistics: those of the whole batch on any number of devices, kept and used afterwards.

That the arithmetic and the running statistics are PyTorch's is in tests/models/test_golden_models.
"""

import jax
import numpy as np
import optax
import pytest

from tests import runs
from tests.training import small
from vitx.attention.conv_attention import CvTAttention, LeViTAttention
from vitx.checkpoints.load import load
from vitx.errors import ConfigError
from vitx.layers.norms import BatchNorm
from vitx.ops.layout import TokenLayout
from vitx.testing import check_token_mixer
from vitx.training import loop

X = np.random.default_rng(0).normal(2.0, 3.0, size=(6, 5, 4)).astype(np.float32)


def test_training_normalizes_and_keeps():
  norm = BatchNorm(momentum=0.75)
  variables = norm.init(jax.random.key(0), X, False)
  np.testing.assert_allclose(norm.apply(variables, X, False), X, rtol=1e-4)  # statistics 0 and 1
  out, state = norm.apply(variables, X, True, mutable=["batch_stats"])
  np.testing.assert_allclose(np.mean(out, (0, 1)), 0, atol=1e-6)
  np.testing.assert_allclose(np.std(out, (0, 1)), 1, atol=1e-4)
  mean, var = X.mean((0, 1)), X.var((0, 1), ddof=1)
  np.testing.assert_allclose(state["batch_stats"]["mean"], 0.25 * mean, rtol=1e-5)
  np.testing.assert_allclose(state["batch_stats"]["var"], 0.75 + 0.25 * var, rtol=1e-5)


@pytest.mark.slow  # compiles four large steps; tests/models/test_cnn.py has a small one
@pytest.mark.parametrize("mixer", ["levit", "cvt"])
def test_one_and_two_devices_train_alike(mixer):
  """Losses, parameters and running statistics, with augmentation, mixing and stochastic depth."""
  task = small.task(token_mixer=mixer, pool="mean", dropout=0.0)
  # Plain descent: Adam would blow the rounding of vanishing gradients up to whole steps.
  step = small.make_step(task, optimizer=optax.identity(), schedule=lambda step: 0.1)
  one, a = small.run(step, 6, devices=1)
  two, b = small.run(step, 6, devices=2)
  np.testing.assert_allclose(two, one, rtol=1e-5)
  before = small.initial(step).model_state["batch_stats"]
  for x, y, z in zip(*map(jax.tree.leaves, (a.model_state, b.model_state, before)), strict=True):
    np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-6)
    assert np.abs(np.asarray(x) - np.asarray(z)).max() > 1e-3
  for x, y in zip(*map(jax.tree.leaves, (a.params, b.params)), strict=True):
    np.testing.assert_allclose(y, x, rtol=1e-3, atol=2e-5)


@pytest.mark.slow
def test_evaluation_uses_the_running_statistics():
  """An example's logits do not depend on its neighbors, though in training they do."""
  model = small.task(token_mixer="levit", pool="mean", dropout=0.0, stochastic_depth=0.0).model
  images = np.random.default_rng(3).normal(size=(6, 8, 8, 1)).astype(np.float32)
  variables = jax.jit(model.init)(jax.random.key(0), images)
  variables = jax.tree.map(
    lambda x: x + 0.1 * np.sin(np.arange(x.size)).reshape(x.shape), variables
  )
  apply = jax.jit(lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]))
  few, _ = apply(variables, images[:3])
  many, state = apply(variables, images)
  assert np.abs(many[:3] - few).max() > 1e-3
  variables |= state
  evaluate = jax.jit(model.apply)
  alone = evaluate(variables, images[:1])
  np.testing.assert_allclose(evaluate(variables, images)[:1], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("whole_runs")
def test_a_run_carries_them(tmp_path):
  """Trained, saved, interrupted and resumed: they end where those of an uninterrupted run do."""
  longer, shorter = (("token_mixer=levit", f"duration={n} steps") for n in (16, 8))
  loop.train(runs.tiny(*longer), tmp_path / "whole")
  # The schedule is a constant here, so that a shorter run is the beginning of a longer one.
  loop.train(runs.tiny(*shorter), tmp_path / "short")
  whole, short = (load(tmp_path / name, "latest").variables for name in ("whole", "short"))
  assert jax.tree.structure(whole) == jax.tree.structure(short)
  for late, early in zip(*(jax.tree.leaves(v["batch_stats"]) for v in (whole, short)), strict=True):
    assert np.all(np.isfinite(late)) and not np.array_equal(late, early)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("module", "fields"),
  [
    (LeViTAttention, {}),
    (LeViTAttention, {"rotary": "axial", "relative_bias": "axial"}),
    (CvTAttention, {}),
    (CvTAttention, {"kv_stride": 2, "head_dim": 12}),
    (CvTAttention, {"rotary": "sequence"}),
  ],
)
def test_the_contract_of_a_token_mixer(module, fields):
  check_token_mixer(module, layouts=(TokenLayout((4, 4)),), pairwise=bool(fields), **fields)


def test_a_class_token_has_no_place_in_a_convolution():
  x = np.zeros((1, 5, 8), np.float32)
  with pytest.raises(ConfigError, match="class token has no place"):
    CvTAttention(2).init(jax.random.key(0), x, TokenLayout((2, 2), prefix=1), train=False)
  with pytest.raises(ConfigError, match="coarser grid"):
    module = CvTAttention(2, kv_stride=2, rotary="sequence")
    module.init(jax.random.key(0), x[:, 1:], TokenLayout((2, 2)), train=False)
