"""Muon: orthogonal directions for hidden matrices of any number of axes, Adam's for the rest."""

import jax
import numpy as np
import optax

from tests.training.optim.directions import directions, settings
from vitx.checkpoints.tree import name_arrays, nest
from vitx.training.optim.optimizers import make_optimizer

SHAPES = {
  "stem/kernel": (4, 4, 3, 24),
  "stem/bias": (24,),
  "block_0/token_mixer/query/kernel": (24, 3, 8),
  "block_0/token_mixer/out/kernel": (3, 8, 24),
  "block_0/mlp/up/kernel": (24, 40),
  "block_0/mlp/up/bias": (40,),
  "block_0/conv/kernel": (3, 3, 24, 24),
  "block_0/norm/scale": (24,),
  "posemb/table": (16, 24),
  "start": (24,),
  "head/kernel": (24, 10),
}
MATRICES = {  # matrices, with the number of inputs of one output
  "block_0/token_mixer/query/kernel": 24,
  "block_0/token_mixer/out/kernel": 24,
  "block_0/mlp/up/kernel": 24,
  "block_0/conv/kernel": 216,
}


def draw(seed):
  generator = np.random.default_rng(seed)
  normal = {name: generator.normal(size=shape) for name, shape in SHAPES.items()}
  return nest({name: value.astype(np.float32) for name, value in normal.items()})


def direct(params, gradients, **fields):
  """Returns Muon's direction after one step."""
  config = settings(optimizer=dict(name="muon", **fields))
  return name_arrays(directions(config, params, gradients)[0])


def test_hidden_matrices_get_orthogonal_directions_and_nothing_else_does():
  updates = direct(draw(0), draw(1), weight_decay=0.0)
  for name, inputs in MATRICES.items():
    matrix = updates[name].reshape(inputs, -1)
    singular = np.linalg.svd(matrix, compute_uv=False) / (0.2 * max(matrix.shape) ** 0.5)
    assert singular.min() > 0.6 and singular.max() < 1.3, name  # five steps come that near to 1
  adam = optax.adam(1.0, 0.9, 0.98)
  expected, _ = jax.jit(lambda grads: adam.update(grads, adam.init(grads)))(draw(1))
  for name, leaf in name_arrays(expected).items():
    if name not in MATRICES:
      np.testing.assert_allclose(updates[name], -leaf, rtol=1e-5, atol=1e-6)


def test_matrices_have_nesterov_momentum():
  """The two steps have different gradients, which tell Nesterov momentum from the plain one."""
  name = "block_0/mlp/up/kernel"
  start, *gradients = (nest({name: name_arrays(draw(seed))[name]}) for seed in range(3))

  def follow(optimizer):
    state, run = optimizer.init(start), jax.jit(optimizer.update)
    for gradient in gradients:
      updates, state = run(gradient, state, start)
    return name_arrays(updates)[name]

  update = follow(make_optimizer(settings(optimizer=dict(name="muon", weight_decay=0.0)), start))
  nesterov, plain = (
    follow(optax.contrib.muon(-1.0, nesterov=x, consistent_rms=0.2)) for x in (True, False)
  )
  np.testing.assert_allclose(update, nesterov, rtol=1e-4, atol=1e-5)
  assert np.abs(update - plain).max() > 0.01


def test_decay_is_decoupled_and_has_the_mask(decay=0.3):
  params, gradients = draw(0), draw(1)
  plain = direct(params, gradients, weight_decay=0.0)
  decayed = direct(params, gradients, weight_decay=decay)
  for name, leaf in name_arrays(params).items():
    expected = decay * leaf if name.endswith("/kernel") else 0.0
    np.testing.assert_allclose(decayed[name] - plain[name], expected, rtol=1e-4, atol=1e-5)
