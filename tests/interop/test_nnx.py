"""Trained models as modules of Flax NNX: equal logits, and use by NNX's own functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import vitx
from tests.checkpoints import untrained

SMALL = dict(width=8, depth=1, num_heads=2, mlp_dim=16, stem=dict(name="linear", patch=4))


@pytest.fixture(scope="module")
def loaded():
  return untrained.make(**SMALL)


@pytest.fixture(scope="module")
def inputs(loaded):
  """The network's input for three images."""
  return jax.jit(loaded.task.preprocess)(untrained.images(3))


def test_the_module_gives_the_logits_also_after_a_split_and_a_merge(loaded, inputs):
  module = vitx.to_nnx(loaded)
  expected = vitx.predict(loaded, untrained.images(3)).logits
  definition, params, rest = nnx.split(module, nnx.Param, ...)
  assert not jax.tree.leaves(rest)
  ours, theirs = (
    sorted(x.shape for x in jax.tree.leaves(tree)) for tree in (params, loaded.variables)
  )
  assert ours == theirs
  merged = nnx.merge(definition, params, rest)
  for logits in (jax.jit(module)(inputs), nnx.jit(lambda m, x: m(x))(merged, inputs)):
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_step_of_descent_changes_the_module_alone(loaded, inputs):
  module = vitx.to_nnx(loaded)
  before = jax.tree.map(np.array, loaded.variables)

  @nnx.jit
  def step(module):
    def loss(module):
      return -jnp.mean(jax.nn.log_softmax(module(inputs))[:, 0])

    value, grads = nnx.value_and_grad(loss)(module)
    params = nnx.state(module, nnx.Param)
    nnx.update(module, jax.tree.map(lambda p, g: p - 0.01 * g, params, grads))
    return value

  first = step(module)
  assert step(module) < first
  jax.tree.map(np.testing.assert_array_equal, loaded.variables, before)


@pytest.mark.slow  # compiles a network with convolutions twice
def test_batch_statistics_are_variables_of_their_own_type():
  loaded = untrained.make("cvt", width=8, depth=(1,), num_heads=2, mlp_dim=16)
  inputs = jax.jit(loaded.task.preprocess)(untrained.images(3))
  module = vitx.to_nnx(loaded)
  expected = vitx.predict(loaded, untrained.images(3)).logits
  call = nnx.jit(lambda m, x, **options: m(x, **options), static_argnames=("train", "mutable"))
  np.testing.assert_allclose(call(module, inputs), expected, rtol=1e-4, atol=1e-5)
  before = jax.tree.map(np.array, nnx.state(module, nnx.BatchStat))
  assert jax.tree.leaves(before)
  call(module, inputs, train=True, rngs=nnx.Rngs(dropout=0), mutable=("batch_stats",))
  after = nnx.state(module, nnx.BatchStat)
  changed = jax.tree.map(lambda x, y: np.any(x != np.array(y)), before, after)
  assert any(jax.tree.leaves(changed))
