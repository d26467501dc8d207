"""Batch statistics of the whole batch on any number of devices, and running statistics.

tests/models/test_golden_models.py compares them with PyTorch's, and tests/tasks/test_task.py shows
that a checkpoint contains them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawn import draw_variables
from vitx.attention.conv_attention import CvTAttention, LeViTAttention
from vitx.layers.norms import BatchNorm
from vitx.ops import replicas
from vitx.ops.layout import TokenLayout
from vitx.testing import check_token_mixer

X = np.random.default_rng(0).normal(2.0, 3.0, size=(6, 5, 4)).astype(np.float32)


def test_training_normalizes_and_updates_running_statistics():
  norm = BatchNorm(momentum=0.75)

  @jax.jit
  def run(key):
    variables = norm.init(key, X, False)
    plain = norm.apply(variables, X, False)
    return plain, *norm.apply(variables, X, True, mutable=["batch_stats"])

  plain, out, state = run(jax.random.key(0))
  np.testing.assert_allclose(plain, X, rtol=1e-4)  # statistics 0 and 1
  np.testing.assert_allclose(np.mean(out, (0, 1)), 0, atol=1e-6)
  np.testing.assert_allclose(np.std(out, (0, 1)), 1, atol=1e-4)
  mean, var = X.mean((0, 1)), X.var((0, 1), ddof=1)
  np.testing.assert_allclose(state["batch_stats"]["mean"], 0.25 * mean, rtol=1e-5)
  np.testing.assert_allclose(state["batch_stats"]["var"], 0.75 + 0.25 * var, rtol=1e-5)


def test_two_devices_share_one_batch():
  """Outputs, running statistics and gradients are equal on one device and on two.

  tests/models/test_cnn.py trains a whole network.
  """
  weights = {"scale": np.linspace(1, 2, 4, dtype=np.float32), "bias": np.zeros(4, np.float32)}
  state = {"mean": np.ones(4, np.float32), "var": np.ones(4, np.float32)}

  def train(x):
    def loss(x):
      variables = {"params": weights, "batch_stats": state}
      out, changed = BatchNorm().apply(variables, x, True, mutable=["batch_stats"])
      return jnp.sum(jnp.sin(out)), (out, changed["batch_stats"])

    return jax.grad(loss, has_aux=True)(x)

  slopes, (out, changed) = jax.jit(train)(X)
  with replicas.over("batch"):
    shared = jax.pmap(train, axis_name="batch")(X.reshape(2, 3, 5, 4))
  np.testing.assert_allclose(shared[0].reshape(X.shape), slopes, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(shared[1][0].reshape(X.shape), out, rtol=1e-5, atol=1e-5)
  for name, value in changed.items():
    np.testing.assert_allclose(shared[1][1][name], [value, value], rtol=1e-5)


def test_evaluation_uses_running_statistics():
  """In evaluation, an example's output does not depend on its neighbors; in training it does."""
  module, layout = LeViTAttention(2), TokenLayout((5,))
  variables = draw_variables(module.init, X, layout=layout, train=False)

  @jax.jit
  def run(variables, x):
    trained, _ = module.apply(variables, x, layout, train=True, mutable=["batch_stats"])
    return trained[0], module.apply(variables, x, layout, train=False)[0]

  other = np.concatenate([X[:1], 2 * X[1:] + 1])
  (trained, alone), (beside, same) = run(variables, X), run(variables, other)
  assert np.abs(trained - beside).max() > 1e-3
  np.testing.assert_allclose(alone, same, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("module", "fields"),
  [
    (LeViTAttention, {"rotary": "axial", "relative_bias": "axial"}),
    (CvTAttention, {"kv_stride": 2, "head_dim": 12}),
    (CvTAttention, {"rotary": "sequence"}),
  ],
)
def test_mixers_with_batch_statistics_keep_the_contract(module, fields):
  check_token_mixer(module, layouts=(TokenLayout((4, 4)),), pairwise=True, **fields)
