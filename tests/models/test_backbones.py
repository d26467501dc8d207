"""Backbones: combinations that work, combinations refused, and published counts."""

from functools import partial

import jax
import numpy as np
import pytest

import vitx

SMALL = {"num_heads": 2, "mlp_dim": 16}
WIDTHS = {"pit": {"width": (8, 16), "depth": (1, 1)}, "cvt": {"width": 8, "depth": (1, 1)}}


def shapes(name, size=8, **fields):
  config = {"num_classes": 3, **SMALL, **WIDTHS.get(name, {"width": 8, "depth": 1}), **fields}
  model = vitx.create_model(name, **config)
  images = np.zeros((2, size, size, 3), np.float32)
  return jax.eval_shape(lambda x: model.init_with_output(jax.random.key(0), x), images)


NEIGHBORHOOD = {"name": "neighborhood", "size": 2}
# Bodies differ in the tokens that they give to a mixer; mixers differ in the tokens they accept.
BODIES = {
  "vit": ("fnet", NEIGHBORHOOD, "levit"),
  "cct": ("softmax", "mlp_mixing"),
  "levit": ("fnet", NEIGHBORHOOD),
  "cvt": ("softmax", "mlp_mixing", NEIGHBORHOOD, "levit"),
  "pit": ("fnet", "mlp_mixing", NEIGHBORHOOD, "levit"),
}


@pytest.mark.parametrize(
  ("name", "mixer"), [(name, mixer) for name, mixers in BODIES.items() for mixer in mixers], ids=str
)
def test_bodies_work_with_other_mixers(name, mixer):
  logits, _ = shapes(name, size=16, token_mixer=mixer)
  assert logits.shape == (2, 3)


@pytest.mark.parametrize(
  ("name", "posemb"),
  [
    *(("cct", "learned"), ("cct", "none"), ("levit", "rope"), ("levit", "sincos")),
    *((name, posemb) for name in ("cvt", "pit") for posemb in ("learned", "sincos", "rope")),
    ("pit", "none"),
  ],
)
def test_bodies_work_with_other_positions(name, posemb):
  assert shapes(name, posemb=posemb)[0].shape == (2, 3)


@pytest.mark.slow
def test_stages_share_one_stochastic_depth():
  """The rate grows linearly over the blocks of all stages."""
  model = vitx.create_model("pit", num_classes=3, **SMALL, **WIDTHS["pit"], stochastic_depth=0.4)
  images = np.random.default_rng(0).normal(size=(16, 4, 4, 3)).astype(np.float32)

  @jax.jit
  def run(key):
    variables = model.init(key, images)
    rngs = {"dropout": jax.random.key(1)}
    apply = partial(model.apply, variables, images, mutable=["intermediates"], rngs=rngs)
    return [apply(train=train)[1]["intermediates"]["tokens"] for train in (True, False)]

  (first, second), (whole, last) = jax.device_get(run(jax.random.key(0)))
  np.testing.assert_array_equal(first, whole)
  assert np.abs(second - last).max() > 1e-3
