"""Muon: orthogonal directions for hidden matrices of any number of axes, Adam's for the rest."""

import jax
import numpy as np
import optax
import pytest

from tests.training.optim.directions import directions, settings
from vitx.checkpoints.tree import name_arrays, nest

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


def direct(params, gradients, steps=1, **fields):
  """Returns Muon's direction after `steps` equal gradients."""
  config = settings(optimizer=dict(name="muon", **fields))
  return name_arrays(directions(config, params, gradients, steps)[0])


def test_hidden_matrices_get_orthogonal_directions_and_nothing_else_does():
  found = direct(draw(0), draw(1), weight_decay=0.0)
  for name, inputs in MATRICES.items():
    matrix = found[name].reshape(inputs, -1)
    singular = np.linalg.svd(matrix, compute_uv=False) / (0.2 * max(matrix.shape) ** 0.5)
    assert singular.min() > 0.6 and singular.max() < 1.3, name  # five steps come that near to 1
  adam = optax.scale_by_adam(0.9, 0.98, nesterov=True)
  expected, _ = jax.jit(lambda grads: adam.update(grads, adam.init(grads)))(draw(1))
  for name, leaf in name_arrays(expected).items():
    if name not in MATRICES:
      np.testing.assert_allclose(found[name], leaf, rtol=1e-5, atol=1e-6)


@pytest.mark.slow  # compiles six iterations for each kernel
def test_axes_of_heads_are_updated_as_one_matrix():
  """A projection to or from (H, D) is updated as its flattened kernel is."""
  gradients = draw(1)
  mixer, mlp = gradients["block_0"]["token_mixer"], gradients["block_0"]["mlp"]
  for name, shape in (("query", (24, 24)), ("out", (24, 24))):
    flat = mixer[name]["kernel"].reshape(shape)
    mlp["up"]["kernel"] = flat
    params = jax.tree.map(np.zeros_like, gradients)
    found = direct(params, gradients, steps=3)
    projection = found[f"block_0/token_mixer/{name}/kernel"].reshape(shape)
    np.testing.assert_allclose(projection, found["block_0/mlp/up/kernel"], rtol=1e-4, atol=1e-5)


def test_the_sign_and_the_size_fit_descent():
  params = draw(0)
  found = direct(params, params, weight_decay=0.0)
  for name, leaf in name_arrays(params).items():
    assert (found[name] * leaf).sum() > 0, name
    if name in MATRICES:
      assert 0.15 < np.sqrt(np.mean(found[name] ** 2)) < 0.25, name


def test_decay_is_decoupled_and_has_the_mask(decay=0.3):
  params, gradients = draw(0), draw(1)
  plain = direct(params, gradients, weight_decay=0.0)
  decayed = direct(params, gradients, weight_decay=decay)
  for name, leaf in name_arrays(params).items():
    wanted = decay * leaf if name.endswith("/kernel") else 0.0
    np.testing.assert_allclose(decayed[name] - plain[name], wanted, rtol=1e-4, atol=1e-5)
