"""Models that compute their attention matrices, and the entropies of these matrices."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.drawn import draw_variables
from tests.slow import all_but
from vitx.analysis.matrices import attention_entropies, expose_matrices
from vitx.attention import MIXERS
from vitx.config.registry import fields_of
from vitx.models import MODELS, model_from_config
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
GRIDS = ("bilevel", "cvt")  # These mixers take no class token.


def make(mixer, **fields):
  """Returns a model that computes its attention matrices, and variables of which none is zero."""
  named = {"name": mixer, **FIELDS.get(mixer, {})}
  pool = "mean" if mixer in GRIDS else "cls"
  config = ConfigDict({"name": "vit", **SIZES, "pool": pool, "token_mixer": named, **fields})
  model = model_from_config(expose_matrices(config))
  return model, draw_variables(model.init, IMAGES)


def look(model, *variables):
  """Returns the attention matrices and the entropies of a model for each of some variables."""

  @jax.jit
  def run(variables):
    sown = model.apply(variables, IMAGES, train=False, mutable=["intermediates"])[1]
    held = collect(sown.get("intermediates", {}), "probabilities")
    return held, attention_entropies(model, variables, IMAGES)

  return [jax.device_get(run(weights)) for weights in variables]


@pytest.mark.parametrize("mixer", all_but("fnet", "longformer", "sparsifiner", of=sorted(MIXERS)))
def test_rows_are_probabilities_unless_a_mixer_has_none(mixer):
  model, variables = make(mixer, depth=1)
  ((held, values),) = look(model, variables)
  assert bool(held) is not bool(MIXERS[mixer].no_logits_reason)
  for matrix in held.values():
    assert matrix.min() >= 0
    np.testing.assert_allclose(matrix.sum(axis=-1), 1, atol=1e-5)
  assert list(values) == (["attention_entropy/block_00"] if held else [])
  assert all(x.shape == (3,) and (x >= 0).all() and (x <= np.log(N)).all() for x in values.values())


def test_entropies_agree_with_values_by_hand():
  """The entropy of uniform attention is the logarithm of the number of keys."""
  model, variables = make("softmax")
  flat = jax.tree_util.tree_map_with_path(
    lambda path, x: x * 0 if any(getattr(p, "key", "") == "query" for p in path) else x, variables
  )
  (held, entropies), (_, alike) = look(model, variables, flat)
  p = np.asarray(held["block_1/token_mixer"], np.float64)
  expected = -np.sum(p * np.log(p), -1).mean((1, 2))
  np.testing.assert_allclose(entropies["attention_entropy/block_01"], expected, rtol=1e-5)
  for value in alike.values():
    np.testing.assert_allclose(value, np.log(N), rtol=1e-5)


def test_the_entropy_of_shaped_attention_ignores_its_scalars():
  """The entropy of shaped attention is that of its softmax, whatever α, β and γ are.

  The entropy is below the maximum, since the kernel of the queries is not small.
  """
  model, variables = make("shaped", depth=1)
  other = jax.tree_util.tree_map_with_path(
    lambda path, x: x + 5.0 if path[-1].key in ("alpha", "beta", "gamma") else x, variables
  )
  values = [x["attention_entropy/block_00"] for _, x in look(model, variables, other)]
  np.testing.assert_allclose(*values, rtol=1e-5)
  assert (values[0] < np.log(N) - 1e-3).all()


def test_the_default_mixer_of_a_network_is_kept():
  for name in ("cct", "cvt", "levit", "swin"):
    default = MODELS[name].PARTS["token_mixer"][1]
    expected = {**fields_of(default), "implementation": "masked"}
    assert expose_matrices({"name": name})["token_mixer"] == expected
  assert expose_matrices({"name": "convmixer"}) == {"name": "convmixer"}
  named = {"name": "vit", "token_mixer": "softmax"}  # a mixer by its name alone
  assert expose_matrices(named)["token_mixer"]["implementation"] == "masked"


def test_exposed_matrices_change_neither_config_nor_outputs():
  config = ConfigDict({"name": "vit", **SIZES, "remat": True})
  plain = model_from_config(config)
  held = expose_matrices(config)
  assert config.remat and not held["remat"]
  assert held["token_mixer"]["implementation"] == "masked"
  _, variables = make("softmax")
  run = jax.jit(
    lambda v: [m.apply(v, IMAGES, train=False) for m in (plain, model_from_config(held))]
  )
  np.testing.assert_allclose(*run(variables), atol=1e-5)
