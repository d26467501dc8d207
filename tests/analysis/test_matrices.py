"""Models that hold what their queries attend, and the entropy of that."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.slow import all_but
from vitx.analysis.matrices import attention_entropies, hold_matrices
from vitx.attention import MIXERS
from vitx.models import model_from_config
from vitx.models.sown import collect

SIZES = dict(num_classes=3, width=16, depth=2, num_heads=2, mlp_dim=16)
IMAGES = np.random.default_rng(0).normal(size=(3, 16, 16, 1)).astype(np.float32)
N = 17  # patches of 4 pixels, and the class token
FIELDS = {
  "bilevel": {"regions": 2},
  "linformer": {"slots": 4},
  "neighborhood": {"size": 3},
  "nystromformer": {"landmarks": 4},
}
GRIDS = ("bilevel", "cvt")  # take no class token


def make(mixer, **fields):
  """A model that holds its matrices, and variables none of which is zero."""
  named = {"name": mixer, **FIELDS.get(mixer, {})}
  pool = "mean" if mixer in GRIDS else "cls"
  config = ConfigDict({"name": "vit", **SIZES, "pool": pool, "token_mixer": named, **fields})
  model = model_from_config(hold_matrices(config))
  variables = model.init(jax.random.key(0), IMAGES, train=False)
  drawn = np.random.default_rng(1)
  return model, jax.tree.map(
    lambda x: x + 0.3 * drawn.normal(size=x.shape).astype(x.dtype), variables
  )


def probabilities(model, variables):
  sown = model.apply(variables, IMAGES, train=False, mutable=["intermediates"])[1]
  return collect(sown["intermediates"], "probabilities")


@pytest.mark.parametrize("mixer", all_but("fnet", "longformer", "sparsifiner", of=sorted(MIXERS)))
def test_rows_are_probabilities_or_the_mixer_says_that_it_has_none(mixer):
  model, variables = make(mixer)
  held = probabilities(model, variables)
  assert bool(held) is not bool(MIXERS[mixer].without_logits)
  for matrix in held.values():
    assert matrix.min() >= 0
    np.testing.assert_allclose(matrix.sum(axis=-1), 1, atol=1e-5)
  found = attention_entropies(model, variables, IMAGES)
  names = [f"attention_entropy/block_0{i}" for i in range(2)] if held else []
  assert list(found) == names
  assert all(x.shape == (3,) and (x >= 0).all() and (x <= np.log(N)).all() for x in found.values())


def test_entropies_by_hand():
  model, variables = make("softmax")
  held = np.asarray(probabilities(model, variables)["block_1/token_mixer"], np.float64)
  found = attention_entropies(model, variables, IMAGES)["attention_entropy/block_01"]
  np.testing.assert_allclose(found, -np.sum(held * np.log(held), -1).mean((1, 2)), rtol=1e-5)


def test_queries_that_attend_all_alike_have_the_logarithm_of_their_number():
  model, variables = make("softmax")
  flat = jax.tree_util.tree_map_with_path(
    lambda path, x: x * 0 if any(getattr(p, "key", "") == "query" for p in path) else x, variables
  )
  for value in attention_entropies(model, flat, IMAGES).values():
    np.testing.assert_allclose(value, np.log(N), rtol=1e-5)


def test_of_shaped_attention_it_is_the_softmax_part():
  """α, β and γ are no part of it, and the query kernel may be large."""
  model, variables = make("shaped")
  other = jax.tree_util.tree_map_with_path(
    lambda path, x: x + 5.0 if path[-1].key in ("alpha", "beta", "gamma") else x, variables
  )
  first = "attention_entropy/block_00"
  values = [attention_entropies(model, v, IMAGES)[first] for v in (variables, other)]
  np.testing.assert_allclose(*values, rtol=1e-5)
  assert (values[0] < np.log(N) - 1e-3).all()


def test_holding_changes_neither_the_config_nor_what_the_model_says():
  config = ConfigDict({"name": "vit", **SIZES, "remat": True})
  plain = model_from_config(config)
  held = hold_matrices(config)
  assert config.remat and not held.remat and held.token_mixer.implementation == "masked"
  variables = plain.init(jax.random.key(0), IMAGES, train=False)
  said = [m.apply(variables, IMAGES, train=False) for m in (plain, model_from_config(held))]
  np.testing.assert_allclose(*said, atol=1e-5)
