"""`init` is Flax's own; `initialize` applies the initialization."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.slow import all_but
from vitx.models import create_model, initialize
from vitx.models.initializers import INITIALIZATIONS

KEY = jax.random.key(0)
IMAGES = np.zeros((1, 8, 8, 3), np.float32)
SMALL = {"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8}


def vit(initialization="pytorch"):
  return create_model("vit", num_classes=3, initialization=initialization, **SMALL)


def same(a, b):
  return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


class Wrapper(nn.Module):
  """A network in the scope of another, as a distilled pair or another head has it."""

  network: nn.Module

  def setup(self):
    nn.share_scope(self, self.network)

  def __call__(self, images):
    return 2 * self.network(images)


@pytest.mark.slow
def test_every_way_to_init_gives_the_same_parameters():
  model = vit()
  params = model.init(KEY, IMAGES)["params"]
  _, variables = model.init_with_output(KEY, IMAGES)
  assert same(variables["params"], params)
  assert same(Wrapper(model).init(KEY, IMAGES)["params"], params)
  assert same(vit("as_made").init(KEY, IMAGES)["params"], params)


@pytest.mark.parametrize(
  "name", all_but("zero_query", of=("pytorch", "truncated_normal", "zero_query", "mimetic"))
)
def test_initialize_is_init_and_then_the_initialization(name):
  model = vit(name)
  params = model.init(KEY, IMAGES)["params"]
  wanted = INITIALIZATIONS[name](jax.random.fold_in(KEY, 1), params)
  assert same(initialize(model, KEY, IMAGES)["params"], wanted)
  assert not same(wanted, params)


def test_keys_by_stream_and_further_arguments():
  model = vit()
  rngs = {"params": KEY, "dropout": jax.random.key(1)}
  found = initialize(model, rngs, IMAGES, train=True)
  assert same(found, initialize(model, KEY, IMAGES))


def test_networks_without_an_initialization():
  model = create_model("convmixer", num_classes=3, width=8, depth=1)
  assert same(initialize(model, KEY, IMAGES), model.init(KEY, IMAGES))
