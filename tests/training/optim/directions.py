"""Parameters of a small network, and an optimizer's update directions for them."""

import jax
import numpy as np
from ml_collections import ConfigDict

from vitx.training.optim.optimizers import make_optimizer
from vitx.training.parameters import parameter_names


def settings(**fields):
  """Returns a config with the fields that an optimizer reads."""
  defaults = dict(
    optimizer={"name": "adamw"},
    weight_decay_mask="matrices",
    grad_clip_norm=None,
    layer_decay=1.0,
    rates=(),
    freeze=(),
  )
  return ConfigDict(defaults | fields)


def network(seed=0):
  """Returns parameters with the names and axes of a small vision transformer's."""
  shapes = {
    "cls": (1, 1, 4),
    "extra": (1, 2, 4),
    "stem": {"conv": {"kernel": (3, 3, 1, 4), "bias": (4,)}},
    "posemb": {"table": (1, 9, 4)},
    "block_0": {
      "attention": {"query": {"kernel": (4, 2, 2), "bias": (2, 2)}},
      "norm": {"scale": (4,), "bias": (4,)},
    },
    "block_1": {"mlp": {"kernel": (4, 8), "bias": (8,)}},
    "norm": {"scale": (4,), "bias": (4,)},
    "head": {"kernel": (4, 5), "bias": (5,)},
  }
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda shape: rng.normal(size=shape).astype(np.float32),
    shapes,
    is_leaf=lambda x: isinstance(x, tuple),
  )


def leaves(tree):
  """Returns the leaves of a tree by name."""
  return dict(zip(parameter_names(tree), jax.tree.leaves(tree), strict=True))


def directions(config, params, grads, count=1):
  """Returns the direction after `count` updates with one gradient, and the optimizer's state."""
  optimizer = make_optimizer(config, params)

  @jax.jit
  def run(params, grads):
    state = optimizer.init(params)
    for _ in range(count):
      updates, state = optimizer.update(grads, state, params)
    return updates, state

  return jax.device_get(run(params, grads))


def close(tree, expected):
  """Asserts that trees agree up to the rounding of differently compiled programs."""
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), tree, expected)


def norm(values):
  return np.sqrt(sum(np.sum(np.square(value)) for value in values))
