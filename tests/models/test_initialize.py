"""`init` is Flax's own; `initialize` also applies the initialization."""

import jax
import numpy as np

from vitx.models import create_model, initialize
from vitx.models.initializers import INITIALIZATIONS

KEY = jax.random.key(0)
IMAGES = np.zeros((1, 8, 8, 3), np.float32)
SMALL = {"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8}


def vit(initialization="pytorch"):
  return create_model("vit", num_classes=3, initialization=initialization, **SMALL)


def same(a, b):
  return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


def test_initialize_applies_the_initialization_after_init():
  """Random keys may be given by stream, and the call may have further arguments."""
  model = vit()
  rngs = {"params": KEY, "dropout": jax.random.key(1)}

  @jax.jit
  def run():
    params = model.init(KEY, IMAGES)["params"]
    expected = INITIALIZATIONS["pytorch"](jax.random.fold_in(KEY, 1), params)
    results = initialize(model, KEY, IMAGES), initialize(model, rngs, IMAGES, train=True)
    return params, expected, *results

  params, expected, variables, by_stream = run()
  assert same(variables["params"], expected) and same(variables, by_stream)
  assert not same(expected, params)


def test_a_network_without_an_initialization_keeps_its_draws():
  model = create_model("convmixer", num_classes=3, width=8, depth=1)
  run = jax.jit(lambda key: (initialize(model, key, IMAGES), model.init(key, IMAGES)))
  assert same(*run(KEY))
