"""Parameters of repeating layers in their two forms: by name, and stacked."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_sparse_transformer import draw, make
from vitx.models import stacked


class Moments(NamedTuple):
  count: np.ndarray
  mu: dict


def network(depth):
  """Returns parameters whose values are the number of their layer, or negative outside blocks."""
  blocks = {
    f"block_{layer}": {"mlp": {"kernel": np.full((2, 3), layer), "bias": np.full(3, layer)}}
    for layer in range(depth)
  }
  return {"stem": {"kernel": np.full((4,), -1)}, "norm": {"scale": np.full((2,), -2)}, **blocks}


@pytest.mark.parametrize(("depth", "cycle"), [(12, 4), (12, 1), (3, 3)])
def test_an_entry_is_a_layer(depth, cycle):
  tree = stacked.stack(network(depth), cycle)
  assert tree.keys() == {"stem", "norm", "cycles"}
  assert tree["cycles"].keys() == {f"block_{i}" for i in range(cycle)}
  for i in range(cycle):
    kernel = tree["cycles"][f"block_{i}"]["mlp"]["kernel"]
    assert kernel.shape == (depth // cycle, 2, 3)
    for c, entry in enumerate(kernel):
      np.testing.assert_array_equal(entry, c * cycle + i)


@pytest.mark.parametrize("library", [np, jnp])
def test_unstacking_undoes_stacking_inside_any_tree(library):
  params = jax.tree.map(library.asarray, network(12))
  tree = (Moments(np.int32(3), params), {"params": params, "ema": None}, [np.ones(2)])
  changed = stacked.stack(tree, 4)
  assert len(jax.tree.leaves(changed)) < len(jax.tree.leaves(tree)) / 2
  assert jax.tree.structure(stacked.stack(changed, 4)) == jax.tree.structure(changed)
  again = stacked.unstack(changed)
  assert jax.tree.structure(again) == jax.tree.structure(tree)
  jax.tree.map(np.testing.assert_array_equal, again, tree)
  assert all(isinstance(x, np.ndarray | np.generic) == (library is np) for x in leaves(changed))


def leaves(tree):
  return jax.tree.leaves(tree[0].mu)


def test_without_a_cycle_or_blocks_nothing_changes():
  tree = network(4)
  assert stacked.stack(tree, 0) is tree and stacked.first_cycle(tree, 0) is tree
  head = {"head": np.ones(3)}
  assert stacked.stack(head, 2) == head == stacked.unstack(head)
  assert stacked.unstack(tree).keys() == tree.keys()


def test_the_first_cycle_has_the_structure_of_all_and_the_shapes_of_one_layer():
  tree = network(12)
  first = stacked.first_cycle(tree, 4)
  assert jax.tree.structure(first) == jax.tree.structure(stacked.stack(tree, 4))
  assert first["cycles"]["block_3"] is tree["block_3"]


@pytest.mark.slow  # compiles two gradients
def test_a_model_takes_either_form():
  model, variables = make(dict(name="softmax"), depth=4, layer_cycle=2, remat=True)
  tokens, params = draw(), variables["params"]
  loss = jax.jit(
    jax.value_and_grad(lambda p: jnp.mean(jnp.tanh(model.apply({"params": p}, tokens))))
  )
  one, by_name = loss(params)
  same, gathered = loss(stacked.stack(params, 2))
  assert one == same and "cycles" in gathered
  grads = stacked.unstack(gathered)
  assert jax.tree.structure(grads) == jax.tree.structure(by_name)
  jax.tree.map(np.testing.assert_array_equal, grads, by_name)
