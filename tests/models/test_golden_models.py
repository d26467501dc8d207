"""Whole networks with weights of vit-pytorch give its outputs (tests/golden/record_models.py).

tests/interop/test_vit_pytorch_names.py has vit-pytorch's ViT.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vitx
from tests.models.vit_pytorch_weights import CARRY, Weights
from tests.slow import all_but

SOFTMAX = {"name": "softmax", "use_bias": False}
MODELS = {
  "levit": {
    "width": 12,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 24,
    "stem": {"name": "hybrid", "channels": (4, 6)},
  },
  "cvt": {
    "width": (8, 8, 12),
    "depth": (1, 1, 1),
    "num_heads": (1, 1, 2),
    "mlp_dim": (16, 16, 24),
    "strides": (2, 1),
  },
  "pit": {
    "width": (8, 16),
    "depth": (1, 1),
    "num_heads": 2,
    "mlp_dim": 16,
    "stem": {"name": "linear", "patch": 2, "stride": 1},
    "norm": {"name": "layer", "epsilon": 1e-5},
    "token_mixer": SOFTMAX | {"head_dim": 4},
  },
  "cct": {"width": 12, "depth": 2, "num_heads": 2, "mlp_dim": 24, "token_mixer": SOFTMAX},
  "small_data": {
    "width": 12,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 20,
    "stem": {"name": "shifted_patch", "patch": 4, "shift": 1, "directions": "cardinal"},
    "norm": {"name": "layer", "epsilon": 1e-5},
    "pool": "cls",
    "token_mixer": {"name": "locality", "use_bias": False, "head_dim": 4},
  },
}
NETWORKS = {"small_data": "vit"}


def carried(name, w, prefix=""):
  """Returns recorded weights as variables with the structure and shapes of the model."""
  params, statistics = CARRY[name](w, prefix)
  return {"params": params, **({"batch_stats": statistics} if statistics else {})}


def build(name, implementation):
  fields = dict(MODELS[name])
  mixer = fields.get("token_mixer", {"name": name, "head_dim": {"levit": 6, "cvt": 64}.get(name)})
  fields["token_mixer"] = mixer | {"implementation": implementation}
  if name == "cvt":
    fields["token_mixer"] |= {"kv_stride": 2}
  return vitx.create_model(NETWORKS.get(name, name), num_classes=5, **fields)


def images(w):
  return jnp.asarray(w.arrays["x"].transpose(0, 2, 3, 1))


def close(output, expected, tolerance=1e-5):
  np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("implementation", all_but("masked", of=("masked", "kernelized")))
@pytest.mark.parametrize("name", all_but("cct", "small_data", of=sorted(MODELS)))
def test_both_implementations_equal_vit_pytorch(name, implementation):
  w = Weights(name)
  model, variables = build(name, implementation), carried(name, w)
  if implementation == "masked":  # both implementations share their parameters
    shapes = jax.eval_shape(model.init, jax.random.key(0), images(w))
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, variables)
  assert not w.unread, "weights that no parameter of ours took"
  close(jax.jit(model.apply)(variables, images(w)), w.arrays["out"])


def test_stem_and_attention_of_small_data_equal_vit_pytorch():
  w = Weights("small_data")
  model, variables = build("small_data", "auto"), carried("small_data", w)

  def is_part(module, method):
    return method == "__call__" and module.name in ("stem", "token_mixer")

  fields = {"capture_intermediates": is_part, "mutable": ["intermediates"]}
  apply = jax.jit(partial(model.apply, **fields))
  sown = apply(variables, images(w))[1]["intermediates"]
  (stem,), (mixer,) = sown["stem"]["__call__"], sown["block_0"]["token_mixer"]["__call__"]
  close(stem.reshape(4, 4, 12), w.arrays["stem_out"])
  close(mixer, w.arrays["mixer_out"])


@pytest.mark.parametrize("name", ["levit", "cvt"])
def test_training_updates_running_statistics_as_vit_pytorch(name):
  w = Weights(name)
  model, variables = build(name, "auto"), carried(name, w)
  apply = jax.jit(lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]))
  out, state = apply(variables, images(w))
  close(out, w.arrays["train_out"])
  after = carried(name, w, "after.")["batch_stats"]
  paired = jax.tree.map(lambda a, b: (a, b), state["batch_stats"], after)
  for value, expected in jax.tree.leaves(paired, is_leaf=lambda x: isinstance(x, tuple)):
    close(value, expected)
