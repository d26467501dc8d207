"""Backbones: combinations that work, combinations refused, and published counts."""

from functools import partial

import jax
import numpy as np
import pytest

import vitx
from vitx.analysis.counting import count
from vitx.config.errors import ConfigError

SMALL = {"num_heads": 2, "mlp_dim": 16}
WIDTHS = {"pit": {"width": (8, 16), "depth": (1, 1)}, "cvt": {"width": 8, "depth": (1, 1)}}


def shapes(name, size=8, **fields):
  given = {"num_classes": 3, **SMALL, **WIDTHS.get(name, {"width": 8, "depth": 1}), **fields}
  model = vitx.create_model(name, **given)
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
def test_any_mixer_in_any_body(name, mixer):
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
def test_any_positions_in_any_body(name, posemb):
  assert shapes(name, posemb=posemb)[0].shape == (2, 3)


@pytest.mark.parametrize(
  ("name", "fields", "parts"),
  [
    ("vit", {"token_mixer": "cvt"}, ["token_mixer='cvt'", "class token", "pool='mean'"]),
    ("pit", {"token_mixer": "cvt"}, ["class token"]),
    ("cvt", {"pool": "cls"}, ["model.pool", "between its stages"]),
    ("cvt", {"strides": (2, 2, 2)}, ["model.strides=(2, 2, 2)", "1 stages"]),
    ("pit", {"width": (8, 12)}, ["model.width=12", "multiple of 8"]),
    ("pit", {"mlp_dim": (8, 8, 8)}, ["model.mlp_dim=(8, 8, 8)", "2 stages"]),
    ("vit", {"causal": True}, ["model.causal=True", "class token", "pool='mean'"]),
    ("vit", {"token_mixer": {"name": "fixed", "causal": True}}, ["token_mixer.causal=True"]),
    ("cct", {"posemb": "rope", "token_mixer": "fnet"}, ["posemb='rope'", "FNet"]),
  ],
)
def test_what_cannot_work_says_why(name, fields, parts):
  with pytest.raises(ConfigError) as error:
    shapes(name, **fields)
  for part in parts:
    assert part in str(error.value)


def test_counting_needs_a_size():
  from configs.vix_cifar10 import get_config

  with pytest.raises(ConfigError, match=r"(num_classes|image_size) is not set"):
    count(get_config("vit,dataset=imagenette/320px-v2"))


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
